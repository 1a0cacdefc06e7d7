// The engine's side of proto/blockmgr/v1/engine.proto: messages to plans,
// results to messages.
//
// Shapes and ranges that need the tables are EngineTables' to check; here every
// value that has no meaning of its own (an enum, a policy, a size) is refused.
//
// Thread-safe (pure functions). Cost: O(message).
#ifndef BENCH_ENGINE_WIRE_H_
#define BENCH_ENGINE_WIRE_H_

#include <absl/status/status.h>

#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.pb.h"

namespace blockmgr {

// InvalidArgument names the field.
// Replaces `plan`, keeping its memory. After an error its content is void.
absl::Status PlanFromProto(const v1::StepPlan& proto, StepPlan* plan);

// `proto` must be empty.
void ResultToProto(const StepResult& result, v1::StepResult* proto);

}  // namespace blockmgr

#endif  // BENCH_ENGINE_WIRE_H_
