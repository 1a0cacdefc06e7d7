#include "tests/kernels/cuda/select_checks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/eviction/select.h"
#include "tests/kernels/cuda/test_pool.h"

namespace blockmgr {

// A case whose policy the device knows.
EvictionCase DrawCase(Rng& rng) {
  while (true) {
    EvictionCase eviction = RandomCase(rng);
    if (eviction.policy.parity == Parity::kNone) return eviction;
  }
}

// Heads of several chunks, among them one long and one empty.
void MakeLong(Rng& rng, EvictionCase* eviction) {
  eviction->range.cut = RandomInt(rng, 300, 1100);
  eviction->range.length = eviction->range.cut + RandomInt(rng, 0, 40);
  eviction->target.tokens = RandomInt(rng, 1, eviction->range.cut);
  for (size_t head = 0; head < eviction->positions.size(); ++head) {
    const int32_t keep_one_in = head == 1 ? 1 << 20 : RandomInt(rng, 1, 3);
    std::vector<int32_t>& positions = eviction->positions[head];
    positions.clear();
    for (int32_t i = 0; i < eviction->range.cut; ++i) {
      if (RandomInt(rng, 1, keep_one_in) == 1) positions.push_back(i);
    }
    eviction->external[head] = RandomInt(rng, 0, eviction->range.cut);
  }
  DrawScores(rng, eviction);
  // Some long heads full of ties.
  if (RandomInt(rng, 0, 2) != 0) return;
  for (std::vector<float>& scores : eviction->scores) {
    for (float& score : scores) {
      score = static_cast<float>(RandomInt(rng, 0, 2)) / 3;
    }
  }
}

std::string Difference(const EvictionCase& c, const SelectOutcome& got) {
  if (!got.error.empty()) return got.error;
  if (!std::ranges::equal(got.budgets, Budgets(c))) return "budgets differ";
  const KeepSets want = Select(c);
  if (got.keep.offsets != want.offsets) return "survivors per head differ";
  if (got.keep.ranks != want.ranks) return "survivors differ";
  if (got.keep.num_nan != want.num_nan) {
    return absl::StrCat(got.keep.num_nan, " NaN, expected ", want.num_nan);
  }
  return "";
}

std::string CheckSelect(uint64_t seed, bool is_long, bool floors) {
  Rng rng(seed);
  EvictionCase c = DrawCase(rng);
  while (floors && c.policy.budget.kind != BudgetKind::kAdaKv) {
    c = DrawCase(rng);
  }
  if (floors) c.policy.budget.mode = AdaKvMode::kFloor;
  if (is_long) MakeLong(rng, &c);
  std::string difference =
      Difference(c, SelectOnDevice({c}, 256, SomeSchedules(rng)[seed % 4]));
  if (difference.empty()) return "";
  return absl::StrCat(difference, " in ", Describe(c));
}

}  // namespace blockmgr
