// Plans: what a plan may do, and what the books are after it.
#ifndef TESTS_SIM_LEDGER_PLAN_H_
#define TESTS_SIM_LEDGER_PLAN_H_

#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks the plan and carries it out in the books. Its step is in flight then.
void TakePlan(const StepPlan& plan, LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_PLAN_H_
