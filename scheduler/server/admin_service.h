// AdminService: the calls of operators, for statistics and the prefix cache.
//
// Threads: thread-safe. The CoreThread must outlive every call.
#ifndef SCHEDULER_SERVER_ADMIN_SERVICE_H_
#define SCHEDULER_SERVER_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/prefix_cache_watches.h"

namespace blockmgr {

class AdminService final
    : public v1::AdminService::WithRawCallbackMethod_GetStats<
          v1::AdminService::WithRawCallbackMethod_ResetPrefixCache<
              v1::AdminService::WithRawCallbackMethod_WatchPrefixCache<
                  v1::AdminService::Service>>> {
 public:
  // `watches` must outlive every call, too.
  AdminService(CoreThread* core, PrefixCacheWatches* watches)
      : core_(core), watches_(watches) {}

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ResetPrefixCache(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchPrefixCache(
      grpc::CallbackServerContext* /*context*/,
      const grpc::ByteBuffer* request) override {
    return watches_->Open(*request);
  }

 private:
  CoreThread* const core_;
  PrefixCacheWatches* const watches_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_ADMIN_SERVICE_H_
