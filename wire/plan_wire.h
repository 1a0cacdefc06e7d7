// Conversions between step plans and results and the messages of
// proto/blockmgr/v1/engine.proto. A daemon sends plans, an engine sends
// results.
//
// FromProto refuses values that are invalid in themselves (an enum, a policy, a
// size). EngineTables and the Scheduler check shapes and ranges that depend on
// the tables. FromProto reuses the memory of the plan or result that it
// overwrites. ToProto fills an empty message and reuses its memory.
//
// Thread-safe: pure functions. Cost: O(message).
#ifndef WIRE_PLAN_WIRE_H_
#define WIRE_PLAN_WIRE_H_

#include <absl/status/status.h>

#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.pb.h"

namespace blockmgr {

void ToProto(const StepPlan& plan, v1::StepPlan* proto);
// InvalidArgument names the field. The content of `plan` is then undefined.
absl::Status FromProto(const v1::StepPlan& proto, StepPlan* plan);

void ToProto(const StepResult& result, v1::StepResult* proto);
void FromProto(const v1::StepResult& proto, StepResult* result);

}  // namespace blockmgr

#endif  // WIRE_PLAN_WIRE_H_
