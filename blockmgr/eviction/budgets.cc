// How many entries each (layer, head) keeps: AllocateBudgets.
#include <algorithm>
#include <cmath>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/apportion.h"
#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/protection.h"
#include "blockmgr/eviction/score_order.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

// Weights are in multiples of 10^-9 entries, the resolution of alpha.
constexpr int64_t kWeightUnit = 1'000'000'000;

// What one head should get: `fixed` entries, and of what is left of the layer's
// total a share in proportion to `weight`.
struct Ideal {
  int64_t fixed = 0;
  int64_t weight = 0;
};

// Everything AllocateBudgets is asked, for the helpers of one layer.
struct Request {
  const EvictionPolicy& policy;
  const EvictionTarget& target;
  const HeadShape& shape;
  const EvictionRange& range;
  const EntriesView& entries;
};

// The layer's heads split by protection.
std::vector<HeadSplit> SplitLayer(const Request& request, int32_t layer) {
  const ProtectedPositions positions(request.policy, request.range);
  std::vector<HeadSplit> splits;
  splits.reserve(request.shape.num_heads);
  for (int32_t head = 0; head < request.shape.num_heads; ++head) {
    const int64_t index = int64_t{layer} * request.shape.num_heads + head;
    splits.push_back(positions.Split(HeadPositions(request.entries, index)));
  }
  return splits;
}

// Of the layer's `slots` best unprotected entries, how many each head holds.
std::vector<int64_t> CountTop(const Request& request, int32_t layer,
                              std::span<const HeadSplit> splits,
                              int64_t slots) {
  std::vector<uint32_t> keys;
  std::vector<int64_t> ends;
  for (size_t head = 0; head < splits.size(); ++head) {
    const int64_t index =
        int64_t{layer} * request.shape.num_heads + static_cast<int64_t>(head);
    AppendKeys(request.entries,
               request.entries.offsets[index] + splits[head].num_sinks,
               splits[head].num_past, &keys);
    ends.push_back(static_cast<int64_t>(keys.size()));
  }
  std::vector<int64_t> counts(splits.size());
  size_t head = 0;
  ForEachTop(keys, slots, [&](int64_t index) {
    while (index >= ends[head]) ++head;
    ++counts[head];
  });
  return counts;
}

// Ada-KV's released code without its rounding (arXiv 2407.11550): with C_h
// slots for the past under a uniform budget and f_h of the layer's top sum(C_h)
// past entries, head h gets f_h * (1 - alpha) + C_h * alpha.
std::vector<Ideal> AdaKvIdeals(const Request& request, int32_t layer,
                               std::span<const HeadSplit> splits) {
  const int64_t mean = MeanEntries(request.target, request.range);
  std::vector<Ideal> ideals(splits.size());
  int64_t slots = 0;
  for (size_t head = 0; head < splits.size(); ++head) {
    ideals[head].fixed = std::min(mean, int64_t{splits[head].num_protected()});
    slots += mean - ideals[head].fixed;
  }
  const std::vector<int64_t> counts = CountTop(request, layer, splits, slots);
  const int64_t alpha = std::llround(request.policy.budget.alpha * kWeightUnit);
  for (size_t head = 0; head < splits.size(); ++head) {
    ideals[head].weight = counts[head] * (kWeightUnit - alpha) +
                          (mean - ideals[head].fixed) * alpha;
  }
  return ideals;
}

// Whole pages: the layer's page total by largest remainder of the ideals.
void RoundToPages(const Request& request, std::span<const HeadSplit> splits,
                  std::span<const Ideal> ideals,
                  std::vector<int32_t>* budgets) {
  const int64_t page_size = request.shape.page_size;
  const int64_t min_pages =
      MinHeadPages(request.policy, request.shape, request.range);
  std::vector<Claim> claims(splits.size());
  for (size_t head = 0; head < splits.size(); ++head) {
    const int64_t entries = splits[head].num_entries();
    claims[head].weight =
        ideals[head].fixed * kWeightUnit + ideals[head].weight;
    claims[head].max = CeilDiv(entries, page_size);
    claims[head].min = std::min(min_pages, claims[head].max);
  }
  const std::vector<int64_t> pages = Apportion(
      LayerPages(request.policy, request.target, request.shape, request.range),
      claims);
  for (size_t head = 0; head < splits.size(); ++head) {
    budgets->push_back(static_cast<int32_t>(std::min(
        pages[head] * page_size, int64_t{splits[head].num_entries()})));
  }
}

// Whole entries: the layer's entry total by largest remainder of the ideals.
void RoundToTokens(const Request& request, std::span<const HeadSplit> splits,
                   std::span<const Ideal> ideals,
                   std::vector<int32_t>* budgets) {
  int64_t total =
      request.shape.num_heads * MeanEntries(request.target, request.range);
  std::vector<Claim> claims(splits.size());
  for (size_t head = 0; head < splits.size(); ++head) {
    const int64_t entries = splits[head].num_entries();
    const int64_t fixed = ideals[head].fixed;
    total -= fixed;
    claims[head].weight = ideals[head].weight;
    claims[head].max = entries - fixed;
    claims[head].min = fixed == 0 && entries > 0 ? 1 : 0;
  }
  const std::vector<int64_t> rest = Apportion(total, claims);
  for (size_t head = 0; head < splits.size(); ++head) {
    budgets->push_back(static_cast<int32_t>(ideals[head].fixed + rest[head]));
  }
}

// The caller's budgets, clipped to what heads hold and to the minimum, and
// under round(page) filled up to whole pages.
std::vector<int32_t> ExternalBudgets(const Request& request,
                                     std::span<const int32_t> external) {
  const bool by_page = request.policy.rounding == Rounding::kPage;
  const int64_t unit = by_page ? request.shape.page_size : 1;
  const int64_t min_units =
      by_page ? MinHeadPages(request.policy, request.shape, request.range) : 1;
  std::vector<int32_t> budgets;
  budgets.reserve(external.size());
  for (size_t index = 0; index < external.size(); ++index) {
    const int64_t wanted = std::max(external[index], 0);
    const int64_t units = std::max(CeilDiv(wanted, unit), min_units);
    const std::span<const int32_t> positions =
        HeadPositions(request.entries, static_cast<int64_t>(index));
    budgets.push_back(static_cast<int32_t>(
        std::min(units * unit, static_cast<int64_t>(positions.size()))));
  }
  return budgets;
}

}  // namespace

std::vector<int32_t> AllocateBudgets(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     const EntriesView& entries,
                                     std::span<const int32_t> external) {
  CheckRange(shape, range);
  CheckEntries(shape, range, entries);
  const Request request{policy, target, shape, range, entries};
  const int64_t num_heads = int64_t{shape.num_layers} * shape.num_heads;
  if (policy.budget.kind == BudgetKind::kExternal) {
    BM_CHECK(static_cast<int64_t>(external.size()) == num_heads);
    return ExternalBudgets(request, external);
  }
  std::vector<int32_t> budgets;
  budgets.reserve(num_heads);
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::vector<HeadSplit> splits = SplitLayer(request, layer);
    // Uniform: nothing fixed, equal weights.
    std::vector<Ideal> ideals(splits.size(), Ideal{0, 1});
    if (policy.budget.kind == BudgetKind::kAdaKv) {
      ideals = AdaKvIdeals(request, layer, splits);
    }
    if (policy.rounding == Rounding::kPage) {
      RoundToPages(request, splits, ideals, &budgets);
    } else {
      RoundToTokens(request, splits, ideals, &budgets);
    }
  }
  return budgets;
}

}  // namespace blockmgr
