#include "blockmgr/eviction/select.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/protection.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

void AppendRanks(int32_t begin, int32_t end, std::vector<int32_t>* ranks) {
  const size_t first = ranks->size();
  ranks->resize(first + static_cast<size_t>(end - begin));
  std::iota(ranks->begin() + static_cast<ptrdiff_t>(first), ranks->end(),
            begin);
}

// Appends the ranks that are kept if the budget is below the number of
// protected entries: first the sinks, then the most recent entries.
void KeepFewest(const HeadSplit& split, int32_t budget,
                std::vector<int32_t>* ranks) {
  const int32_t num_sinks = std::min(split.num_sinks, budget);
  const int32_t num_recent = budget - num_sinks;
  AppendRanks(0, num_sinks, ranks);
  AppendRanks(split.num_entries() - num_recent, split.num_entries(), ranks);
}

// Picks among the unprotected entries of one head. All heads use one picker,
// and with it its buffers.
class PastPicker {
 public:
  PastPicker(const SelectorSpec& selector, const EntriesView& entries)
      : selector_(selector), entries_(entries) {}

  // Appends the ranks of `count` of the past entries that begin at index
  // `begin` of the view.
  void Pick(int64_t begin, const HeadSplit& split, int64_t count,
            std::vector<int32_t>* ranks) {
    keys_.clear();
    AppendKeys(entries_, begin, split.num_past, &keys_);
    if (selector_.kind == SelectorKind::kTopK) {
      AppendTop(keys_, count, split.num_sinks, ranks);
      return;
    }
    PickCritical(begin, split, count, ranks);
  }

 private:
  // Returns first * count, rounded down. `first` counts as a multiple of 10^-9,
  // so that the sizes of the stages are exact.
  static int64_t FirstStage(double first, int64_t count) {
    constexpr int64_t kUnit = 1'000'000'000;
    return count * std::llround(first * kUnit) / kUnit;
  }

  float Product(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    if (selector_.gqa_product) return entries_.products[i];
    const float score = entries_.scores.empty()
                            ? static_cast<float>(entries_.positions[i])
                            : entries_.scores[i];
    return (score + static_cast<float>(selector_.eps)) *
           entries_.value_norms[i];
  }

  void PickCritical(int64_t begin, const HeadSplit& split, int64_t count,
                    std::vector<int32_t>* ranks) {
    const int64_t first = FirstStage(selector_.first, count);
    taken_.assign(keys_.size(), 0);
    ForEachTop(keys_, first,
               [&](int64_t index) { taken_[static_cast<size_t>(index)] = 1; });
    keys_.clear();
    rest_.clear();
    for (int32_t index = 0; index < split.num_past; ++index) {
      if (taken_[static_cast<size_t>(index)] != 0) continue;
      keys_.push_back(ScoreKey(Product(begin + index)));
      rest_.push_back(index);
    }
    ForEachTop(keys_, count - first, [&](int64_t index) {
      taken_[static_cast<size_t>(rest_[static_cast<size_t>(index)])] = 1;
    });
    for (int32_t index = 0; index < split.num_past; ++index) {
      if (taken_[static_cast<size_t>(index)] != 0) {
        ranks->push_back(split.num_sinks + index);
      }
    }
  }

  const SelectorSpec& selector_;
  const EntriesView& entries_;
  std::vector<uint32_t> keys_;
  std::vector<uint8_t> taken_;  // by past entry
  std::vector<int32_t> rest_;   // past entries the first stage left
};

}  // namespace

KeepSets SelectEntries(const EvictionPolicy& policy,
                       const EvictionTarget& target, const HeadShape& shape,
                       const EvictionRange& range, const EntriesView& entries,
                       std::span<const int32_t> external) {
  if (policy.selector.kind == SelectorKind::kCritical) {
    BM_CHECK(entries.positions.size() == (policy.selector.gqa_product
                                              ? entries.products.size()
                                              : entries.value_norms.size()));
  }
  const std::vector<int32_t> budgets =
      AllocateBudgets(policy, target, shape, range, entries, external);
  const ProtectedPositions positions(policy, range);
  KeepSets kept;
  kept.num_nan = std::count_if(entries.scores.begin(), entries.scores.end(),
                               [](float score) { return std::isnan(score); });
  kept.offsets.reserve(budgets.size() + 1);
  kept.offsets.push_back(0);
  PastPicker picker(policy.selector, entries);
  for (size_t index = 0; index < budgets.size(); ++index) {
    const HeadSplit split =
        positions.Split(HeadPositions(entries, static_cast<int64_t>(index)));
    const int32_t budget = budgets[index];
    if (budget >= split.num_entries()) {
      AppendRanks(0, split.num_entries(), &kept.ranks);
    } else if (budget < split.num_protected()) {
      KeepFewest(split, budget, &kept.ranks);
    } else {
      AppendRanks(0, split.num_sinks, &kept.ranks);
      picker.Pick(entries.offsets[index] + split.num_sinks, split,
                  budget - split.num_protected(), &kept.ranks);
      AppendRanks(split.num_sinks + split.num_past, split.num_entries(),
                  &kept.ranks);
    }
    kept.offsets.push_back(static_cast<int64_t>(kept.ranks.size()));
  }
  return kept;
}

}  // namespace blockmgr
