// The device selection on the emulator, against the CPU's bit for bit, and the
// proof that these tests find bugs.
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/emulated_pool.h"
#include "tests/kernels/cuda/select_runner.h"

namespace blockmgr {
namespace {

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
  if (got.budgets != Budgets(c)) return "budgets differ";
  const KeepSets want = Select(c);
  if (got.keep.offsets != want.offsets) return "survivors per head differ";
  if (got.keep.ranks != want.ranks) return "survivors differ";
  if (got.keep.num_nan != want.num_nan) {
    return absl::StrCat(got.keep.num_nan, " NaN, expected ", want.num_nan);
  }
  return "";
}

// One random selection; what is wrong, or "".
template <int kBug = kNoBug, bool kFloors = false>
std::string CheckSelect(uint64_t seed, bool is_long) {
  Rng rng(seed);
  EvictionCase c = DrawCase(rng);
  while (kFloors && c.policy.budget.kind != BudgetKind::kAdaKv) {
    c = DrawCase(rng);
  }
  if (kFloors) c.policy.budget.mode = AdaKvMode::kFloor;
  if (is_long) MakeLong(rng, &c);
  std::string difference = Difference(
      c, RunEmulatedSelect<kBug>({c}, 256, SomeSchedules(rng)[seed % 4]));
  if (difference.empty() || kBug != kNoBug) return difference;
  return absl::StrCat(difference, " in ", Describe(c));
}

TEST(SelectTest, ShortHeadsEqualTheCpu) {
  for (uint64_t seed = 0; seed < 40 / kEmulatedCaseDivisor; ++seed) {
    ASSERT_EQ(CheckSelect(seed, false), "") << "seed " << seed;
  }
}

TEST(SelectTest, LongHeadsEqualTheCpu) {
  for (uint64_t seed = 1000; seed < 1000 + 16 / kEmulatedCaseDivisor; ++seed) {
    ASSERT_EQ(CheckSelect(seed, true), "") << "seed " << seed;
  }
}

TEST(SelectTest, FloorsEqualTheCpu) {
  for (uint64_t seed = 2000; seed < 2000 + 12 / kEmulatedCaseDivisor; ++seed) {
    ASSERT_EQ((CheckSelect<kNoBug, true>(seed, seed % 2 == 1)), "")
        << "seed " << seed;
  }
}

// Two sequences in a call get what each gets alone.
TEST(SelectTest, SequencesDoNotMeet) {
  for (uint64_t seed = 0; seed < 8 / kEmulatedCaseDivisor; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const EvictionCase first = DrawCase(rng);
    EvictionCase second = first;
    MakeLong(rng, &second);
    const SelectOutcome both =
        RunEmulatedSelect({first, second}, 512, SomeSchedules(rng)[seed % 4]);
    ASSERT_EQ(both.error, "");
    std::vector<int32_t> budgets = Budgets(first);
    const std::vector<int32_t> others = Budgets(second);
    budgets.insert(budgets.end(), others.begin(), others.end());
    EXPECT_EQ(both.budgets, budgets);
    std::vector<int32_t> ranks = Select(first).ranks;
    const std::vector<int32_t> other_ranks = Select(second).ranks;
    ranks.insert(ranks.end(), other_ranks.begin(), other_ranks.end());
    EXPECT_EQ(both.keep.ranks, ranks);
    EXPECT_EQ(both.keep.num_nan,
              Select(first).num_nan + Select(second).num_nan);
  }
}

// Every budget of one head from nothing to everything.
TEST(SelectTest, EveryBudgetOfEqualScores) {
  Rng rng(4);
  EvictionCase c = DrawCase(rng);
  c.policy = EvictionPolicy();
  c.policy.scorer.kind = ScorerKind::kExternal;
  c.policy.budget.kind = BudgetKind::kExternal;
  c.policy.selector.kind = SelectorKind::kTopK;
  c.policy.rounding = Rounding::kToken;
  c.policy.protect = {.sinks = 2, .recent = 3};
  c.shape = {.num_layers = 1, .num_heads = 41, .page_size = 4};
  c.range = {.cut = 40, .length = 40};
  c.positions.assign(41, {});
  c.external.assign(41, 0);
  for (int32_t head = 0; head < 41; ++head) {
    for (int32_t i = 0; i < 40; ++i) c.positions[head].push_back(i);
    c.external[head] = head;
  }
  c.value_norms.clear();
  c.products.clear();
  for (const float score : {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), -1.5f}) {
    c.scores.assign(41, std::vector<float>(40, score));
    const SelectOutcome got = RunEmulatedSelect({c}, 256, {});
    EXPECT_EQ(Difference(c, got), "") << "score " << score;
  }
}

// One scope of more heads than a warp has lanes: all of a layer's, or all of a
// model's.
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

// All scores equal and not, by token and by page, for 40 heads; one of these,
// `seed`, for 256, which take the emulator long.
void CheckManyHeads(BudgetKind kind, AdaKvMode mode, uint64_t seed) {
  const auto check = [&](int32_t num_heads, uint64_t case_seed) {
    const EvictionCase c = ManyHeads(kind, mode, num_heads, case_seed);
    EXPECT_EQ(Difference(c, RunEmulatedSelect({c}, 256, {})), "")
        << num_heads << " heads, seed " << case_seed;
  };
  for (uint64_t i = 0; i < 4; ++i) check(40, i);
  check(256, seed);
}

TEST(SelectTest, ManyHeadsShareABlendAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kAdaKv, AdaKvMode::kBlend, 0);
}

TEST(SelectTest, ManyHeadsShareAboveFloorsAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kAdaKv, AdaKvMode::kFloor, 3);
}

TEST(SelectTest, ManyHeadsOfAModelShareAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kGlobal, AdaKvMode::kBlend, 1);
}

bool IsFound(const std::function<std::string(uint64_t, bool)>& check) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    if (!check(seed, seed % 2 == 1).empty()) return true;
  }
  return false;
}

TEST(SelectMutationTest, EachPlantedBugIsFound) {
  EXPECT_TRUE(IsFound(CheckSelect<kSelectOrdersNanBySign>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectSplitsZeros>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectForgetsPrefix>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectNoBarrierAfterClear>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectNoBarrierBeforePick>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectPicksEarly>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectIgnoresEarlierChunks>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectIgnoresEarlierWarps>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectTiesToHigher>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectFloorCountsTwice, true>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectFractionTiesToHigher>));
  EXPECT_TRUE(IsFound(CheckSelect<kSelectForgetsProtection>));
}

}  // namespace
}  // namespace blockmgr
