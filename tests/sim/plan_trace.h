// Everything of a plan, mixed into the trace of a run.
#ifndef TESTS_SIM_PLAN_TRACE_H_
#define TESTS_SIM_PLAN_TRACE_H_

#include "blockmgr/step_plan.h"
#include "tests/sim/report.h"

namespace blockmgr::sim {

void MixPlan(const StepPlan& plan, Report* report);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_PLAN_TRACE_H_
