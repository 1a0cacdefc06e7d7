// EngineService: an engine attaches, then runs the steps of one stream.
//
// A result goes straight from the stream's read to the core queue, and a plan
// goes from the core thread to the stream's write. No other thread is involved.
//
// Threads: thread-safe. The CoreThread and this service must outlive every
// stream.
#ifndef SCHEDULER_SERVER_ENGINE_SERVICE_H_
#define SCHEDULER_SERVER_ENGINE_SERVICE_H_

#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/engine.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/rate_limited_warning.h"

namespace blockmgr {

// The service parses messages itself (raw_messages.h). gRPC would end the
// stream of an engine whose message it cannot parse, as if the engine had
// detached.
class EngineService final
    : public v1::EngineService::WithRawCallbackMethod_RunSteps<
          v1::EngineService::WithRawCallbackMethod_Attach<
              v1::EngineService::Service>> {
 public:
  // `max_result_bytes` limits a message of RunSteps.
  EngineService(CoreThread* core, int64_t max_result_bytes)
      : core_(core), max_result_bytes_(max_result_bytes) {}

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RunSteps(
      grpc::CallbackServerContext* context) override;

 private:
  CoreThread* const core_;
  const int64_t max_result_bytes_;
  RateLimitedWarning refusals_;  // an engine has refused an eviction
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_ENGINE_SERVICE_H_
