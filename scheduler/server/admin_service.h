// AdminService: what operators ask. Threads: thread-safe. The CoreThread must
// outlive every call.
#ifndef SCHEDULER_SERVER_ADMIN_SERVICE_H_
#define SCHEDULER_SERVER_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/prefix_cache_watches.h"

namespace blockmgr {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(CoreThread* core) : core_(core), watches_(core) {}

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override;
  grpc::ServerUnaryReactor* ResetPrefixCache(
      grpc::CallbackServerContext* context,
      const v1::ResetPrefixCacheRequest* request,
      v1::ResetPrefixCacheResponse* response) override;
  grpc::ServerWriteReactor<v1::PrefixCacheUpdate>* WatchPrefixCache(
      grpc::CallbackServerContext* /*context*/,
      const v1::WatchPrefixCacheRequest* request) override {
    return watches_.Open(*request);
  }

 private:
  CoreThread* const core_;
  PrefixCacheWatches watches_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_ADMIN_SERVICE_H_
