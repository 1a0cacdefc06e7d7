#include "blockmgr/eviction/select.h"

#include <algorithm>
#include <cmath>

#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/protection.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

void AppendRanks(int32_t begin, int32_t end, std::vector<int32_t>* ranks) {
  for (int32_t rank = begin; rank < end; ++rank) ranks->push_back(rank);
}

// A budget below the protected set: the first sinks, then the most recent.
void KeepFewest(const HeadSplit& split, int32_t budget,
                std::vector<int32_t>* ranks) {
  const int32_t num_sinks = std::min(split.num_sinks, budget);
  const int32_t num_recent = budget - num_sinks;
  AppendRanks(0, num_sinks, ranks);
  AppendRanks(split.num_entries() - num_recent, split.num_entries(), ranks);
}

// All protected entries and the best of the past, whose keys are given.
void KeepBest(const HeadSplit& split, int32_t budget,
              std::span<const uint32_t> past_keys,
              std::vector<int32_t>* ranks) {
  AppendRanks(0, split.num_sinks, ranks);
  ForEachTop(past_keys, budget - split.num_protected(), [&](int64_t index) {
    ranks->push_back(split.num_sinks + static_cast<int32_t>(index));
  });
  AppendRanks(split.num_sinks + split.num_past, split.num_entries(), ranks);
}

}  // namespace

KeepSets SelectEntries(const EvictionPolicy& policy,
                       const EvictionTarget& target, const HeadShape& shape,
                       const EvictionRange& range, const EntriesView& entries,
                       std::span<const int32_t> external) {
  const std::vector<int32_t> budgets =
      AllocateBudgets(policy, target, shape, range, entries, external);
  const ProtectedPositions positions(policy, range);
  KeepSets kept;
  kept.num_nan = std::count_if(entries.scores.begin(), entries.scores.end(),
                               [](float score) { return std::isnan(score); });
  kept.offsets.reserve(budgets.size() + 1);
  kept.offsets.push_back(0);
  std::vector<uint32_t> keys;
  for (size_t index = 0; index < budgets.size(); ++index) {
    const HeadSplit split =
        positions.Split(HeadPositions(entries, static_cast<int64_t>(index)));
    const int32_t budget = budgets[index];
    if (budget >= split.num_entries()) {
      AppendRanks(0, split.num_entries(), &kept.ranks);
    } else if (budget < split.num_protected()) {
      KeepFewest(split, budget, &kept.ranks);
    } else {
      keys.clear();
      AppendKeys(entries, entries.offsets[index] + split.num_sinks,
                 split.num_past, &keys);
      KeepBest(split, budget, keys, &kept.ranks);
    }
    kept.offsets.push_back(static_cast<int64_t>(kept.ranks.size()));
  }
  return kept;
}

}  // namespace blockmgr
