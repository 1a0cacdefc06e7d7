#include "scheduler/server/grpc_status.h"

#include "scheduler/server/peer_text.h"

namespace blockmgr {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shorten(status.message()));
}

}  // namespace blockmgr
