// RequestService: frontends submit requests and read their tokens.
//
// The stream of a client (token_stream.h) joins the tokens of each request that
// the client has not yet taken.
//
// Threads: thread-safe. The CoreThread must outlive every stream.
#ifndef SCHEDULER_SERVER_REQUEST_SERVICE_H_
#define SCHEDULER_SERVER_REQUEST_SERVICE_H_

#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/request.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/rate_limited_warning.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

class RequestService final
    : public v1::RequestService::WithRawCallbackMethod_Submit<
          v1::RequestService::WithRawCallbackMethod_StreamTokens<
              v1::RequestService::WithRawCallbackMethod_Cancel<
                  v1::RequestService::Service>>> {
 public:
  // `max_pending_bytes` limits, approximately, the bytes on the wire that one
  // client leaves unread. `max_submit_bytes` limits a SubmitRequest.
  RequestService(CoreThread* core, int64_t max_pending_bytes,
                 int64_t max_submit_bytes)
      : core_(core),
        max_pending_bytes_(max_pending_bytes),
        max_submit_bytes_(max_submit_bytes) {}

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamTokens(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;

 private:
  CoreThread* const core_;
  const int64_t max_pending_bytes_;
  const int64_t max_submit_bytes_;
  Worker worker_;  // makes and writes the messages of token streams
  RateLimitedWarning sharing_;  // a client shares compressed prefixes
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_REQUEST_SERVICE_H_
