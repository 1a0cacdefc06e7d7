// The totals that page counts and budgets share. They depend on policy, target,
// shape and range alone, so manager and engine compute the same ones.
#ifndef BLOCKMGR_EVICTION_PAGE_MATH_H_
#define BLOCKMGR_EVICTION_PAGE_MATH_H_

#include <cstdint>
#include <vector>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Aborts unless shape and range are as select.h requires them.
void CheckRange(const HeadShape& shape, const EvictionRange& range);

// Entries per head on average, at least 1; all of them when nothing is older
// than the protected recent positions.
int64_t MeanEntries(const EvictionPolicy& policy, const EvictionTarget& target,
                    const EvictionRange& range);

// Pages that hold every position below the cut.
int64_t MaxHeadPages(const HeadShape& shape, const EvictionRange& range);

// Pages that hold every protected position below the cut; may be none.
int64_t ProtectedPages(const EvictionPolicy& policy, const HeadShape& shape,
                       const EvictionRange& range);

// Pages every head may keep whatever the target says: one, or enough for every
// protected position. At most MaxHeadPages.
int64_t MinHeadPages(const EvictionPolicy& policy, const HeadShape& shape,
                     const EvictionRange& range);

// round(page): the pages of so many heads that share one total. All of them
// when the target is all of the positions: the last page of every head may be
// one that positions do not fill, and a floor would evict from it.
int64_t ScopePages(int64_t num_heads, const EvictionPolicy& policy,
                   const EvictionTarget& target, const HeadShape& shape,
                   const EvictionRange& range);

// Consecutive heads, in the order (layer, head), that share one total.
struct BudgetScope {
  int64_t first_head = 0;
  int64_t num_heads = 0;
  int64_t entries = 0;  // the total, before minima
  int64_t pages = 0;    // the total under round(page)
};

// One scope per layer, or one of the whole model for global. Pyramid moves
// totals between layers; their sum is conserved.
// REQUIRES: neither external nor a table (see BudgetKind).
std::vector<BudgetScope> BudgetScopes(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_PAGE_MATH_H_
