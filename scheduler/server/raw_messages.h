// Parses the messages of peers from bytes, and turns answers into bytes.
//
// The services take bytes and parse them here, for two reasons. gRPC answers a
// message that it cannot parse with the status UNIMPLEMENTED and no text. A
// message of nothing but empty parts takes forty times its size in memory, so
// the memory is counted before the message is parsed.
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

// Replaces `message`. ResourceExhausted if the bytes are more than max_bytes,
// or if the message would take more memory than it may. InvalidArgument if the
// bytes are not such a message, or if text in it is not UTF-8. All errors name
// the message's type.
absl::Status ParseMessage(grpc::ByteBuffer bytes, const MessageLimits& limits,
                          google::protobuf::Message* message);

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message);

// Ends a call with `status`, and with the response if the status is OK.
inline void Answer(grpc::ServerUnaryReactor* reactor,
                   const absl::Status& status,
                   const google::protobuf::Message& response,
                   grpc::ByteBuffer* bytes) {
  if (status.ok()) *bytes = ToBytes(response);
  reactor->Finish(ToGrpc(status));
}

// Begins a unary call. `serve(request, reactor)` returns an error, with which
// the call ends, or sees to it that the call is ended later. If the request
// cannot be parsed, the call ends with an error and `serve` is not called.
template <typename Request, typename Serve>
grpc::ServerUnaryReactor* ServeUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& bytes,
                                     const MessageLimits& limits, Serve serve) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  Request request;
  absl::Status status = ParseMessage(bytes, limits, &request);
  if (status.ok()) status = serve(request, reactor);
  if (!status.ok()) reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_RAW_MESSAGES_H_
