// Losses: what follows when the engine or the host tier has lost blocks, and
// what the scheduler chose to do about it.
#ifndef TESTS_SIM_LEDGER_LOSS_H_
#define TESTS_SIM_LEDGER_LOSS_H_

#include "blockmgr/block_manager.h"
#include "blockmgr/step_plan.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Takes the blocks that an answer reports as lost. TakeCuts must follow if
// these are blocks of the pool.
void TakeLoss(const StepResult& result, LedgerBooks* books);

// Takes what the manager kept of each sequence that has lost blocks.
void TakeCuts(const BlockManager& manager, LedgerBooks* books);

// Takes out of their slots the sequences that have left because an eviction of
// theirs was refused.
void TakeLeft(const BlockManager& manager, LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_LOSS_H_
