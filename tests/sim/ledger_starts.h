// The starts of a plan.
//
// A request starts with nothing, with a prefix that the cache has, perhaps on a
// region, on the table of its parent as a fork, or on what it has in the host
// tier. A sequence that has lost blocks restarts in its slot.
#ifndef TESTS_SIM_LEDGER_STARTS_H_
#define TESTS_SIM_LEDGER_STARTS_H_

#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks a start of the plan, and puts the sequence into its slot.
void TakeStart(const StepPlan& plan, const SequenceStart& start,
               LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_STARTS_H_
