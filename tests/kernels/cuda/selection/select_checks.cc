#include "tests/kernels/cuda/selection/select_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/eviction/select.h"
#include "tests/kernels/cuda/test_pool.h"

namespace blockmgr {

void MakeLong(Rng& rng, int32_t cut, EvictionCase* eviction) {
  eviction->range.cut = cut;
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

namespace {

// Returns how the device's selection differs from the CPU's, and for which
// case; "" if they are equal.
std::string Check(const EvictionCase& c, int32_t chunk_entries,
                  const simt::Schedule& schedule,
                  int32_t divide_from = INT32_MAX) {
  std::string difference =
      Difference(c, SelectOnDevice({c}, chunk_entries, schedule, divide_from));
  if (difference.empty()) return "";
  return absl::StrCat(difference, " in ", Describe(c));
}

}  // namespace

std::string CheckSelect(uint64_t seed, bool is_long, bool floors) {
  Rng rng(seed);
  EvictionCase c = RandomCase(rng);
  while (floors && c.policy.budget.kind != BudgetKind::kAdaKv) {
    c = RandomCase(rng);
  }
  if (floors) c.policy.budget.mode = AdaKvMode::kFloor;
  if (is_long) MakeLong(rng, RandomInt(rng, 300, 1100), &c);
  return Check(c, 256, SomeSchedules(rng)[seed % 4]);
}

std::string CheckManyTurns(uint64_t seed) {
  Rng rng(seed);
  const auto selector =
      seed % 2 == 0 ? SelectorKind::kTopK : SelectorKind::kCritical;
  EvictionCase c = RandomCase(rng);
  while (c.policy.selector.kind != selector) c = RandomCase(rng);
  MakeLong(rng, (seed % 4 < 2 ? 40000 : 0) + RandomInt(rng, 17000, 20000), &c);
  return Check(c, 2048, SomeSchedules(rng)[seed % 4]);
}

std::string CheckCacheEdge(uint64_t seed) {
  Rng rng(seed);
  EvictionCase c = RandomCase(rng);
  MakeLong(rng, 32796 + static_cast<int32_t>(seed % 6), &c);
  return Check(c, 2048, SomeSchedules(rng)[seed % 4]);
}

std::string CheckDivided(uint64_t seed) {
  Rng rng(seed);
  const auto selector =
      seed % 2 == 0 ? SelectorKind::kTopK : SelectorKind::kCritical;
  EvictionCase c = RandomCase(rng);
  while (c.policy.selector.kind != selector) c = RandomCase(rng);
  MakeLong(rng, RandomInt(rng, 300, 1500), &c);
  const auto first = static_cast<int32_t>(c.positions[0].size());
  const int32_t divide_from = seed % 5 == 0 ? 1 : first + RandomInt(rng, -1, 1);
  return Check(c, 256, SomeSchedules(rng)[seed % 4], divide_from);
}

namespace {

EvictionCase ManyHeads(BudgetKind kind, AdaKvMode mode, int32_t num_heads,
                       uint64_t seed) {
  Rng rng(seed);
  EvictionCase c;
  c.policy.scorer.kind = ScorerKind::kExternal;
  c.policy.budget.kind = kind;
  c.policy.budget.mode = mode;
  c.policy.budget.alpha = 0.2;
  c.policy.rounding = seed % 2 == 0 ? Rounding::kToken : Rounding::kPage;
  c.policy.protect = {.sinks = 0, .recent = seed % 3 == 0 ? 2 : 0};
  const int32_t num_layers = kind == BudgetKind::kGlobal ? num_heads / 8 : 1;
  c.shape = {.num_layers = num_layers,
             .num_heads = num_heads / num_layers,
             .page_size = 4};
  c.range = {.cut = 21, .length = 23};
  c.target.ratio = {60, 100};
  const bool all_equal = seed / 2 % 2 == 0;
  for (int32_t head = 0; head < num_heads; ++head) {
    c.positions.emplace_back();
    c.scores.emplace_back();
    for (int32_t i = 0; i < c.range.cut; ++i) {
      c.positions.back().push_back(i);
      c.scores.back().push_back(
          all_equal ? 1.0f
                    : static_cast<float>(RandomInt(rng, 0, 8 + head / 4)));
    }
  }
  c.external.assign(num_heads, 0);
  return c;
}

}  // namespace

std::string CheckManyHeads(BudgetKind kind, AdaKvMode mode, int32_t num_heads,
                           uint64_t seed) {
  return Check(ManyHeads(kind, mode, num_heads, seed), 256, {});
}

EvictionCase GivenBudgets(const std::vector<int32_t>& sizes,
                          int32_t page_size) {
  EvictionCase c;
  c.policy.scorer.kind = ScorerKind::kExternal;
  c.policy.budget.kind = BudgetKind::kExternal;
  c.policy.rounding = Rounding::kToken;
  c.shape = {.num_layers = 1,
             .num_heads = static_cast<int32_t>(sizes.size()),
             .page_size = page_size};
  const int32_t cut = *std::ranges::max_element(sizes);
  c.range = {.cut = cut, .length = cut};
  for (const int32_t size : sizes) {
    c.positions.emplace_back(size);
    std::iota(c.positions.back().begin(), c.positions.back().end(), 0);
  }
  c.external.assign(sizes.size(), 0);
  return c;
}

std::string CheckCloseFloors(uint64_t seed) {
  Rng rng(seed);
  EvictionCase c = GivenBudgets(std::vector<int32_t>(6, 600), 4);
  c.policy.budget.kind =
      seed % 4 == 3 ? BudgetKind::kGlobal : BudgetKind::kAdaKv;
  c.policy.budget.mode = AdaKvMode::kFloor;
  c.policy.budget.alpha = RandomInt(rng, 1, 10) / 10.0;
  c.policy.protect = {.sinks = 0, .recent = RandomInt(rng, 0, 1) * 20};
  c.target.ratio = {RandomInt(rng, 5, 95), 100};
  // Few scores tie often.
  const int32_t num_scores = RandomInt(rng, 0, 1) == 0 ? 40 : 2000;
  const float step = seed % 3 == 0   ? 1.0f / (1 << 23)
                     : seed % 3 == 1 ? 1.0f / (1 << 14)
                                     : 1.0f / (1 << 10);
  for (const std::vector<int32_t>& positions : c.positions) {
    const int32_t least = RandomInt(rng, 0, num_scores / 2);
    c.scores.emplace_back();
    for (size_t i = 0; i < positions.size(); ++i) {
      const int32_t score = least + RandomInt(rng, 0, num_scores);
      c.scores.back().push_back(1.0f + static_cast<float>(score) * step);
    }
  }
  return Check(c, 256, SomeSchedules(rng)[seed % 4]);
}

std::string CheckManyTies(uint64_t seed) {
  Rng rng(seed);
  EvictionCase c = GivenBudgets({140000, 100}, 16);
  c.policy.protect = {.sinks = 4, .recent = 8};
  // Half of a head has the lowest score, and of these the first one most of
  // what it keeps beyond the others.
  for (const std::vector<int32_t>& positions : c.positions) {
    c.scores.emplace_back();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const int32_t drawn = RandomInt(rng, 0, 5);
      c.scores.back().push_back(drawn < 2 ? 3.0f : drawn < 3 ? 2.0f : 1.0f);
    }
  }
  c.external = {RandomInt(rng, 110000, 130000), RandomInt(rng, 1, 100)};
  const std::string difference = Check(c, 2048, {});
  return difference.empty() ? Check(c, 2048, {}, 140000) : difference;
}

}  // namespace blockmgr
