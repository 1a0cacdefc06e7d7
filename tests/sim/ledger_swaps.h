// The swaps of a plan. A sequence may leave for the host tier, and its request
// may come back.
#ifndef TESTS_SIM_LEDGER_SWAPS_H_
#define TESTS_SIM_LEDGER_SWAPS_H_

#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks that the plan drops the swaps that are due, and drops them.
void TakeDroppedSwaps(const StepPlan& plan, LedgerBooks* books);

void TakeSwapOut(const StepPlan& plan, const SwapOut& out, LedgerBooks* books);

void TakeSwapIn(const StepPlan& plan, const SequenceStart& start,
                LedgerRequest* served, LedgerTable* table, LedgerBooks* books);

// Takes the blocks that regions come back to. Call it when the regions that the
// plan drops are gone: their blocks may be among these.
void TakeReturning(LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_SWAPS_H_
