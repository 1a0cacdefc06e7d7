// Messages to plain data and back. What comes from outside is checked here;
// errors are InvalidArgument and name the field as the .proto files do.
//
// Thread-safe: pure functions. Cost: linear in the message.
#ifndef SCHEDULER_SERVER_WIRE_H_
#define SCHEDULER_SERVER_WIRE_H_

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <grpcpp/support/status.h>

#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/admin.pb.h"
#include "proto/blockmgr/v1/engine.pb.h"
#include "proto/blockmgr/v1/eviction.pb.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "scheduler/request.h"
#include "scheduler/server/commands.h"
#include "wire/policy_wire.h"

namespace blockmgr {

// The codes of both are the same numbers; the message is shortened.
grpc::Status ToGrpc(const absl::Status& status);

// 1..128 bytes.
absl::Status CheckId(absl::string_view field, const std::string& id);

// The session is not part of the request.
absl::StatusOr<Request> FromProto(const v1::SubmitRequest& proto);

// Without scores: those come beside it. Checks that the policy's budget and
// `budgets` agree.
absl::StatusOr<EvictionCommand> FromProto(const v1::EvictRequest& proto);
void ToProto(const EvictionEffect& effect, v1::EvictResponse* proto);

// `proto` must be empty; its memory is reused.
void ToProto(const StepPlan& plan, v1::StepPlan* proto);
// Reuses the memory of `result`. Shapes are the Scheduler's to check.
void FromProto(const v1::StepResult& proto, StepResult* result);

void ToProto(const CoreStats& stats, v1::GetStatsResponse* proto);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_WIRE_H_
