// Turns errors into those that clients get.
#ifndef SCHEDULER_SERVER_GRPC_STATUS_H_
#define SCHEDULER_SERVER_GRPC_STATUS_H_

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

namespace blockmgr {

// Returns the status with the same code and a shortened message
// (scheduler/server/peer_text.h). Thread-safe.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_GRPC_STATUS_H_
