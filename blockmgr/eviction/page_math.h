// The totals that page counts and budgets share. A total depends on policy,
// target, shape and range alone. The manager and the engine therefore compute
// the same totals.
#ifndef BLOCKMGR_EVICTION_PAGE_MATH_H_
#define BLOCKMGR_EVICTION_PAGE_MATH_H_

#include <cstdint>
#include <vector>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Aborts unless shape and range meet the requirements of select.h.
void CheckRange(const HeadShape& shape, const EvictionRange& range);

// Returns the mean number of entries per head, at least 1. If no position is
// older than the protected recent positions, returns all entries.
int64_t MeanEntries(const EvictionPolicy& policy, const EvictionTarget& target,
                    const EvictionRange& range);

// Returns the number of pages that hold every position below the cut.
int64_t MaxHeadPages(const HeadShape& shape, const EvictionRange& range);

// Returns the number of pages that hold every protected position below the cut.
// May be 0.
int64_t CountProtectedPages(const EvictionPolicy& policy,
                            const HeadShape& shape, const EvictionRange& range);

// Returns the number of pages that every head may keep under any target: one,
// or enough for every protected position. At most MaxHeadPages.
int64_t MinHeadPages(const EvictionPolicy& policy, const HeadShape& shape,
                     const EvictionRange& range);

// Returns the pages of num_heads heads that share one total under round(page).
// If the target covers all positions, returns all pages: the last page of every
// head may not be full, and a floor would evict from it.
int64_t CountScopePages(int64_t num_heads, const EvictionPolicy& policy,
                        const EvictionTarget& target, const HeadShape& shape,
                        const EvictionRange& range);

// Consecutive heads, in the order (layer, head), that share one total.
struct BudgetScope {
  int64_t first_head = 0;
  int64_t num_heads = 0;
  int64_t entries = 0;  // the total, before minima
  int64_t pages = 0;    // the total under round(page)
};

// Returns one scope per layer, or for global one scope for the whole model.
// Pyramid moves totals between layers. The sum of the totals stays. REQUIRES: a
// budget that is neither external nor looked up in a table (see BudgetKind).
std::vector<BudgetScope> BudgetScopes(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_PAGE_MATH_H_
