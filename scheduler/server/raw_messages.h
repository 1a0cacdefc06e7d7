// Messages of peers from the bytes that they have sent, and answers as bytes.
//
// The services take bytes and parse them here. gRPC would answer what it cannot
// parse with UNIMPLEMENTED and no word. And a message that is made of nothing
// but empty parts takes forty times its size, so that is counted first.
//
// Thread-safe: pure functions. Cost: linear in the message.
#ifndef SCHEDULER_SERVER_RAW_MESSAGES_H_
#define SCHEDULER_SERVER_RAW_MESSAGES_H_

#include <cstdint>

#include <absl/status/status.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "scheduler/server/grpc_status.h"

namespace blockmgr {

// Bytes of memory that a parsed message may take per byte received.
inline constexpr int64_t kMaxAmplification = 4;
// Bytes of memory that a parsed message may take in addition. A message within
// its documented limits may consist of many small parts.
inline constexpr int64_t kPartsAllowanceBytes = int64_t{1} << 20;
// The size limit of requests that have only a few names and numbers.
inline constexpr int64_t kMaxSmallMessageBytes = int64_t{64} << 10;

struct MessageLimits {
  int64_t max_bytes = kMaxSmallMessageBytes;
  int64_t allowance_bytes = kPartsAllowanceBytes;
};

// Replaces `message`. ResourceExhausted: more than max_bytes, or parts that
// would take more memory than they may; InvalidArgument: not such a message, or
// none at all, or text in it is not UTF-8. All name the message's type.
absl::Status ParseMessage(grpc::ByteBuffer bytes, const MessageLimits& limits,
                          google::protobuf::Message* message);

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message);

// Ends a call: with the response, if the status is OK.
inline void Answer(grpc::ServerUnaryReactor* reactor,
                   const absl::Status& status,
                   const google::protobuf::Message& response,
                   grpc::ByteBuffer* bytes) {
  if (status.ok()) *bytes = ToBytes(response);
  reactor->Finish(ToGrpc(status));
}

// A unary call: `serve(request, reactor)` is to end it, or an error has.
template <typename Request, typename Serve>
grpc::ServerUnaryReactor* ServeUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& bytes,
                                     const MessageLimits& limits, Serve serve) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Request request;
  const absl::Status status = ParseMessage(bytes, limits, &request);
  if (status.ok()) {
    serve(request, reactor);
  } else {
    reactor->Finish(ToGrpc(status));
  }
  return reactor;
}

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_RAW_MESSAGES_H_
