// PageTotal, PageTotalExternal and the totals behind them: how many pages a
// region may have.
#include <algorithm>
#include <cmath>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/apportion.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/protection.h"

namespace blockmgr {
namespace {

int64_t CountHeads(const HeadShape& shape) {
  return int64_t{shape.num_layers} * shape.num_heads;
}

// PyramidKV's budgets of the layers, mean entries per head (arXiv 2406.02069):
// a line from `most` in the first layer to `least` in the last, as
// PyramidFormula (policy.h) has it.
std::vector<int64_t> PyramidMeans(const BudgetSpec& budget, int64_t mean,
                                  int64_t num_protected, int64_t num_layers,
                                  int64_t num_positions) {
  std::vector<int64_t> means(num_layers, mean);
  if (num_layers == 1) return means;
  const bool kvpress = budget.formula == PyramidFormula::kKvPress;
  const int64_t past = kvpress ? mean : mean - num_protected;
  const auto limit = static_cast<double>(num_positions - num_protected);
  const auto total = static_cast<double>(past);
  if (past <= 0) return means;
  if (budget.formula == PyramidFormula::kFactory && num_positions < 2 * past) {
    return means;
  }
  double least = total / budget.beta;
  if (!kvpress) least = std::floor(least);
  double most = 2.0 * total - least;
  if (most >= limit) {
    most = limit;
    least = 2.0 * total - most;
  }
  const bool in_range = static_cast<double>(num_positions) >= most &&
                        most >= least &&
                        least >= static_cast<double>(num_protected);
  if (kvpress && !in_range) return means;
  double step = (most - least) / static_cast<double>(num_layers - 1);
  if (!kvpress) step = std::floor(step);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const double entries = most - static_cast<double>(layer) * step;
    means[layer] = std::max<int64_t>(0, std::llrint(entries)) + mean - past;
  }
  return means;
}

// Returns the parts of the layers of `total` units, shared by weight.
std::vector<int64_t> ShareLayers(int64_t total,
                                 const std::vector<int64_t>& weights,
                                 int64_t min, int64_t max) {
  std::vector<Claim> claims;
  claims.reserve(weights.size());
  for (const int64_t weight : weights) {
    claims.push_back({.weight = weight, .min = min, .max = max});
  }
  return Apportion(total, claims);
}

}  // namespace

void CheckRange(const HeadShape& shape, const EvictionRange& range) {
  BM_CHECK(shape.num_layers > 0);
  BM_CHECK(shape.num_heads > 0);
  BM_CHECK(shape.page_size > 0);
  BM_CHECK(range.cut > 0);
  BM_CHECK(range.cut <= range.length);
}

int64_t MeanEntries(const EvictionPolicy& policy, const EvictionTarget& target,
                    const EvictionRange& range) {
  if (range.length <= policy.protected_recent()) return range.cut;
  return std::max(1, target.TokensPerHead(range.cut));
}

int64_t MaxHeadPages(const HeadShape& shape, const EvictionRange& range) {
  return CeilDiv(int64_t{range.cut}, int64_t{shape.page_size});
}

int64_t CountProtectedPages(const EvictionPolicy& policy,
                            const HeadShape& shape,
                            const EvictionRange& range) {
  return CeilDiv(int64_t{ProtectedPositions(policy, range).count()},
                 int64_t{shape.page_size});
}

int64_t MinHeadPages(const EvictionPolicy& policy, const HeadShape& shape,
                     const EvictionRange& range) {
  return std::max(int64_t{1}, CountProtectedPages(policy, shape, range));
}

int64_t CountScopePages(int64_t num_heads, const EvictionPolicy& policy,
                        const EvictionTarget& target, const HeadShape& shape,
                        const EvictionRange& range) {
  const int64_t mean = MeanEntries(policy, target, range);
  if (mean >= range.cut) return num_heads * MaxHeadPages(shape, range);
  return std::max(num_heads * mean / shape.page_size,
                  num_heads * MinHeadPages(policy, shape, range));
}

std::vector<BudgetScope> BudgetScopes(const EvictionPolicy& policy,
                                      const EvictionTarget& target,
                                      const HeadShape& shape,
                                      const EvictionRange& range) {
  const int64_t mean = MeanEntries(policy, target, range);
  const int64_t heads = shape.num_heads;
  const auto pages_for = [&](int64_t num_heads) {
    return CountScopePages(num_heads, policy, target, shape, range);
  };
  if (policy.budget.kind == BudgetKind::kGlobal) {
    const int64_t all = CountHeads(shape);
    return {{.first_head = 0,
             .num_heads = all,
             .entries = all * mean,
             .pages = pages_for(all)}};
  }
  std::vector<int64_t> entries(shape.num_layers, heads * mean);
  std::vector<int64_t> pages(shape.num_layers, pages_for(heads));
  if (policy.budget.kind == BudgetKind::kPyramid ||
      policy.budget.kind == BudgetKind::kAdaPyramid) {
    const int64_t num_protected = ProtectedPositions(policy, range).count();
    const std::vector<int64_t> means = PyramidMeans(
        policy.budget, mean, num_protected, shape.num_layers, range.cut);
    const int64_t least =
        heads * std::min(mean, std::max(int64_t{1}, num_protected));
    entries = ShareLayers(CountHeads(shape) * mean, means, least,
                          heads * int64_t{range.cut});
    pages = ShareLayers(pages_for(CountHeads(shape)), means,
                        heads * MinHeadPages(policy, shape, range),
                        heads * MaxHeadPages(shape, range));
  }
  std::vector<BudgetScope> scopes(shape.num_layers);
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    scopes[layer] = {.first_head = layer * heads,
                     .num_heads = heads,
                     .entries = entries[layer],
                     .pages = pages[layer]};
  }
  return scopes;
}

int64_t PageTotal(const EvictionPolicy& policy, const EvictionTarget& target,
                  const HeadShape& shape, const EvictionRange& range) {
  CheckRange(shape, range);
  BM_CHECK(policy.budget.kind != BudgetKind::kExternal);
  BM_CHECK(!policy.needs_table());
  if (policy.rounding == Rounding::kPage) {
    // This is the sum over BudgetScopes, because a pyramid only moves pages
    // between layers.
    const BudgetKind kind = policy.budget.kind;
    const bool of_model = kind == BudgetKind::kGlobal ||
                          kind == BudgetKind::kPyramid ||
                          kind == BudgetKind::kAdaPyramid;
    return of_model
               ? CountScopePages(CountHeads(shape), policy, target, shape,
                                 range)
               : shape.num_layers * CountScopePages(shape.num_heads, policy,
                                                    target, shape, range);
  }
  const int64_t entries =
      CountHeads(shape) * MeanEntries(policy, target, range);
  const int64_t slack = CountHeads(shape) * (shape.page_size - 1);
  // No head holds more than one entry per position.
  return std::min((entries + slack) / shape.page_size,
                  CountHeads(shape) * MaxHeadPages(shape, range));
}

int64_t PageTotalExternal(std::span<const int32_t> budgets,
                          const EvictionPolicy& policy, const HeadShape& shape,
                          const EvictionRange& range) {
  CheckRange(shape, range);
  BM_CHECK(static_cast<int64_t>(budgets.size()) == CountHeads(shape));
  const int64_t min_pages = policy.rounding == Rounding::kPage
                                ? CountProtectedPages(policy, shape, range)
                                : 0;
  const int64_t max_pages = MaxHeadPages(shape, range);
  int64_t total = 0;
  for (const int32_t budget : budgets) {
    const int64_t entries = std::max(budget, 0);
    total += std::clamp(CeilDiv(entries, int64_t{shape.page_size}), min_pages,
                        max_pages);
  }
  return total;
}

}  // namespace blockmgr
