// How many pages a region may have: PageTotal and PageTotalExternal.
#include <algorithm>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/protection.h"

namespace blockmgr {
namespace {

int64_t NumHeads(const HeadShape& shape) {
  return int64_t{shape.num_layers} * shape.num_heads;
}

}  // namespace

void CheckRange(const HeadShape& shape, const EvictionRange& range) {
  BM_CHECK(shape.num_layers > 0);
  BM_CHECK(shape.num_heads > 0);
  BM_CHECK(shape.page_size > 0);
  BM_CHECK(range.cut > 0);
  BM_CHECK(range.cut < range.length);
  BM_CHECK(range.cut % shape.page_size == 0);
}

int64_t MeanEntries(const EvictionTarget& target, const EvictionRange& range) {
  return std::max(1, target.TokensPerHead(range.cut));
}

int64_t MinHeadPages(const EvictionPolicy& policy, const HeadShape& shape,
                     const EvictionRange& range) {
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  return std::max(int64_t{1}, CeilDiv(num_protected, int64_t{shape.page_size}));
}

int64_t LayerPages(const EvictionPolicy& policy, const EvictionTarget& target,
                   const HeadShape& shape, const EvictionRange& range) {
  const int64_t entries = shape.num_heads * MeanEntries(target, range);
  return std::max(entries / shape.page_size,
                  shape.num_heads * MinHeadPages(policy, shape, range));
}

int64_t PageTotal(const EvictionPolicy& policy, const EvictionTarget& target,
                  const HeadShape& shape, const EvictionRange& range) {
  CheckRange(shape, range);
  BM_CHECK(policy.budget.kind != BudgetKind::kExternal);
  if (policy.rounding == Rounding::kPage) {
    return shape.num_layers * LayerPages(policy, target, shape, range);
  }
  const int64_t entries = NumHeads(shape) * MeanEntries(target, range);
  const int64_t slack = NumHeads(shape) * (shape.page_size - 1);
  // No head holds more than one entry per position.
  return std::min((entries + slack) / shape.page_size,
                  NumHeads(shape) * (range.cut / shape.page_size));
}

int64_t PageTotalExternal(std::span<const int32_t> budgets,
                          const EvictionPolicy& policy, const HeadShape& shape,
                          const EvictionRange& range) {
  CheckRange(shape, range);
  BM_CHECK(static_cast<int64_t>(budgets.size()) == NumHeads(shape));
  const int64_t min_pages = policy.rounding == Rounding::kPage
                                ? MinHeadPages(policy, shape, range)
                                : 1;
  const int64_t max_pages = range.cut / shape.page_size;
  int64_t total = 0;
  for (const int32_t budget : budgets) {
    const int64_t entries = std::max(budget, 0);
    total += std::clamp(CeilDiv(entries, int64_t{shape.page_size}), min_pages,
                        max_pages);
  }
  return total;
}

}  // namespace blockmgr
