#include "scheduler/server/admin_service.h"

#include "scheduler/server/wire.h"

namespace blockmgr {

grpc::ServerUnaryReactor* AdminService::GetStats(
    grpc::CallbackServerContext* context, const v1::GetStatsRequest* request,
    v1::GetStatsResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  core_->Post(
      blockmgr::GetStats{request->reset_peaks(),
                         [reactor, response](absl::StatusOr<CoreStats> stats) {
                           if (stats.ok()) ToProto(*stats, response);
                           reactor->Finish(ToGrpc(stats.status()));
                         }});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ResetPrefixCache(
    grpc::CallbackServerContext* context,
    const v1::ResetPrefixCacheRequest* /*request*/,
    v1::ResetPrefixCacheResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  core_->Post(blockmgr::ResetPrefixCache{
      [reactor, response](absl::StatusOr<CacheReset> reset) {
        if (reset.ok()) {
          response->set_dropped_blocks(reset->num_dropped);
          response->set_in_use_blocks(reset->num_in_use);
        }
        reactor->Finish(ToGrpc(reset.status()));
      }});
  return reactor;
}

}  // namespace blockmgr
