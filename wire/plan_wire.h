// The engine's API, proto/blockmgr/v1/engine.proto: plans and results to
// messages (a daemon sends plans, an engine results) and back.
//
// FromProto refuses every value that has no meaning of its own (an enum, a
// policy, a size); shapes and ranges that need the tables are EngineTables' and
// the Scheduler's to check. It keeps the memory of what it replaces. ToProto
// fills an empty message, whose memory is reused.
//
// Thread-safe: pure functions. Cost: O(message).
#ifndef WIRE_PLAN_WIRE_H_
#define WIRE_PLAN_WIRE_H_

#include <absl/status/status.h>

#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.pb.h"

namespace blockmgr {

void ToProto(const StepPlan& plan, v1::StepPlan* proto);
// InvalidArgument names the field; after it the content of `plan` is void.
absl::Status FromProto(const v1::StepPlan& proto, StepPlan* plan);

void ToProto(const StepResult& result, v1::StepResult* proto);
void FromProto(const v1::StepResult& proto, StepResult* result);

}  // namespace blockmgr

#endif  // WIRE_PLAN_WIRE_H_
