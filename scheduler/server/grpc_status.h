// Turns errors into those that clients get.
#ifndef SCHEDULER_SERVER_GRPC_STATUS_H_
#define SCHEDULER_SERVER_GRPC_STATUS_H_

#include <absl/status/status.h>
#include <grpcpp/support/status.h>

namespace blockmgr {

// The codes of both are the same numbers; the message is shortened
// (scheduler/server/peer_text.h). Thread-safe.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_GRPC_STATUS_H_
