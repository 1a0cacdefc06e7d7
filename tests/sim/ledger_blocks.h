// The blocks that a plan gives to its runs, and its copies on write.
//
// A block is fresh, or the prefix cache has it. A cached block must hold the
// same tokens, for the same layer group, scope and evictions.
#ifndef TESTS_SIM_LEDGER_BLOCKS_H_
#define TESTS_SIM_LEDGER_BLOCKS_H_

#include <cstddef>

#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks that the plan has a list of blocks for each run and layer group. The
// other functions rely on it.
void CheckBlockArrays(const StepPlan& plan, const LedgerBooks& books);

void TakeCopies(const StepPlan& plan, LedgerBooks* books);

// Takes the blocks of a run in all groups.
void TakeBlocks(const StepPlan& plan, size_t run, LedgerTable* table,
                LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_BLOCKS_H_
