// Eviction orders: which evictions a plan may order, and where they may go.
#ifndef TESTS_SIM_LEDGER_ORDERS_H_
#define TESTS_SIM_LEDGER_ORDERS_H_

#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks an order of the plan, and adds it to the books and to the step. The
// step has the runs of the plan and the orders before this one.
void TakeOrder(const StepPlan& plan, const EvictionOrder& order,
               LedgerBooks* books, LedgerStep* step);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_ORDERS_H_
