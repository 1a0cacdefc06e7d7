// The numbers that page totals and budgets share. They depend on policy,
// target, shape and range alone, so manager and engine compute the same ones.
#ifndef BLOCKMGR_EVICTION_PAGE_MATH_H_
#define BLOCKMGR_EVICTION_PAGE_MATH_H_

#include <cstdint>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Aborts unless shape and range are as select.h requires them.
void CheckRange(const HeadShape& shape, const EvictionRange& range);

// Entries per head on average, at least 1.
int64_t MeanEntries(const EvictionTarget& target, const EvictionRange& range);

// Pages every head may keep whatever the target says: one, or enough for every
// protected position. At most cut / page_size.
int64_t MinHeadPages(const EvictionPolicy& policy, const HeadShape& shape,
                     const EvictionRange& range);

// round(page): pages of one layer.
int64_t LayerPages(const EvictionPolicy& policy, const EvictionTarget& target,
                   const HeadShape& shape, const EvictionRange& range);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_PAGE_MATH_H_
