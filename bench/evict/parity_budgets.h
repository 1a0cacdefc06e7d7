// ParityMeans and ParityTableBudgets: how much published programs keep.
// `parity` uses these budgets in place of page totals (select.h) and shared-out
// tables (budget_table.h). parity.h has what the programs select.
//
// A count is int(T * (1 - r)) in doubles, T = range.cut, with r the double
// nearest to 1 - keep ratio; or the target's tokens, which may be 0 here.
//
// Pure: safe from any thread.
#ifndef BENCH_EVICT_PARITY_BUDGETS_H_
#define BENCH_EVICT_PARITY_BUDGETS_H_

#include <cstdint>
#include <vector>

#include "bench/evict/parity_policy.h"
#include "blockmgr/eviction/budget_table.h"

namespace blockmgr {

// T * (1 - r), before programs truncate it.
double ParityCount(const EvictionTarget& target, int32_t covered);

// Whether the target covers all positions. Then nothing is evicted, whatever
// the formulas of the programs would give. kvpress does nothing at r = 0, the
// released programs where the budget exceeds the positions. (Where the budget
// equals them, a released program may lose an entry of a head to rounding; that
// is not followed.)
bool ParityKeepsAll(const EvictionTarget& target, int32_t covered);

// Whether the program keeps the scorer's query window whole, beside budgets of
// the past; otherwise the window competes.
bool KeepsWindowBeside(const ParityPolicy& policy);

// Entries per head of every layer, before scores move them between heads and
// what heads hold bounds them, [num_layers]: the count, or a pyramid's line
// through it (published_budgets.h). A window that is kept beside is left out.
// O(layers). REQUIRES: CheckParity is OK, parity, no table.
std::vector<int64_t> ParityMeans(const ParityEviction& eviction);

// TableBudgets (budget_table.h); with parity, [num_layers * num_heads], the
// window included, at most range.cut each, of totals that drift:
//   headkv  the window + HeadKvBudgetsReleased of the count without it
//   lukv    of every layer LuKvBudgetsKvPress or, under `released`,
//           LuKvBudgetsPaper, with r of one row of the profile: the nearest to
//           the fraction evicted; of two as near, the one that the fraction's
//           hundredths, rounded half to even, are nearer to. The rows for 0 and
//           1 are not the program's and serve only where there is no other
// or all of the positions where ParityKeepsAll.
// O(layers * heads + rows). REQUIRES: CheckParity and CheckTable are OK.
std::vector<int32_t> ParityTableBudgets(const ParityEviction& eviction,
                                        const BudgetTable& table);

}  // namespace blockmgr

#endif  // BENCH_EVICT_PARITY_BUDGETS_H_
