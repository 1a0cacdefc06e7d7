#include "scheduler/server/admin_service.h"

#include "scheduler/server/raw_messages.h"
#include "wire/request_wire.h"

namespace blockmgr {

grpc::ServerUnaryReactor* AdminService::GetStats(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetStatsRequest>(
      context, *request, {},
      [this, response](const v1::GetStatsRequest& get,
                       grpc::ServerUnaryReactor* reactor) {
        core_->Post(blockmgr::GetStats{
            get.reset_peaks(),
            [reactor, response](const absl::StatusOr<CoreStats>& stats) {
              v1::GetStatsResponse proto;
              if (stats.ok()) ToProto(*stats, &proto);
              Answer(reactor, stats.status(), proto, response);
            },
            /*counts_metadata=*/true});
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* AdminService::ResetPrefixCache(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::ResetPrefixCacheRequest>(
      context, *request, {},
      [this, response](const v1::ResetPrefixCacheRequest& /*reset*/,
                       grpc::ServerUnaryReactor* reactor) {
        core_->Post(blockmgr::ResetPrefixCache{
            [reactor, response](const absl::StatusOr<CacheReset>& reset) {
              v1::ResetPrefixCacheResponse proto;
              if (reset.ok()) {
                proto.set_dropped_blocks(reset->num_dropped);
                proto.set_in_use_blocks(reset->num_in_use);
              }
              Answer(reactor, reset.status(), proto, response);
            }});
        return absl::OkStatus();
      });
}

}  // namespace blockmgr
