// Comparison of the books with what the manager and the scheduler say.
#ifndef TESTS_SIM_LEDGER_COMPARE_H_
#define TESTS_SIM_LEDGER_COMPARE_H_

#include "blockmgr/block_manager.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Compares the tables, and the counts of blocks, host blocks and requests.
void CompareBooks(const LedgerBooks& books, const BlockManager& manager,
                  const SchedulerStats& stats);

// Checks that nothing is left when all requests have ended and every step is
// answered.
void CheckAtRest(const LedgerBooks& books, const SchedulerStats& stats);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_COMPARE_H_
