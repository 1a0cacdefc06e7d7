// The device selection against the CPU's, bit for bit.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/select_checks.h"
#include "tests/kernels/cuda/select_runner.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

class SelectTest : public DeviceTest {};

TEST_F(SelectTest, ShortHeadsEqualTheCpu) {
  for (uint64_t seed = 0; seed < NumCases(40); ++seed) {
    ASSERT_EQ(CheckSelect(seed, false, false), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, LongHeadsEqualTheCpu) {
  for (uint64_t seed = 1000; seed < 1000 + NumCases(16); ++seed) {
    ASSERT_EQ(CheckSelect(seed, true, false), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, FloorsEqualTheCpu) {
  for (uint64_t seed = 2000; seed < 2000 + NumCases(12); ++seed) {
    ASSERT_EQ(CheckSelect(seed, seed % 2 == 1, true), "") << "seed " << seed;
  }
}

// Two sequences in a call get what each gets alone.
TEST_F(SelectTest, SequencesDoNotMeet) {
  for (uint64_t seed = 0; seed < NumCases(8); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const EvictionCase first = DrawCase(rng);
    EvictionCase second = first;
    MakeLong(rng, &second);
    const SelectOutcome both =
        SelectOnDevice({first, second}, 512, SomeSchedules(rng)[seed % 4]);
    ASSERT_EQ(both.error, "");
    std::vector<int32_t> budgets = Budgets(first);
    const std::vector<int32_t> others = Budgets(second);
    budgets.insert(budgets.end(), others.begin(), others.end());
    EXPECT_TRUE(std::ranges::equal(both.budgets, budgets));
    std::vector<int32_t> ranks = Select(first).ranks;
    const std::vector<int32_t> other_ranks = Select(second).ranks;
    ranks.insert(ranks.end(), other_ranks.begin(), other_ranks.end());
    EXPECT_EQ(both.keep.ranks, ranks);
    EXPECT_EQ(both.keep.num_nan,
              Select(first).num_nan + Select(second).num_nan);
  }
}

// Every budget of one head from nothing to everything.
TEST_F(SelectTest, EveryBudgetOfEqualScores) {
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
    const SelectOutcome got = SelectOnDevice({c}, 256, {});
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
    EXPECT_EQ(Difference(c, SelectOnDevice({c}, 256, {})), "")
        << num_heads << " heads, seed " << case_seed;
  };
  for (uint64_t i = 0; i < 4; ++i) check(40, i);
  check(256, seed);
}

TEST_F(SelectTest, ManyHeadsShareABlendAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kAdaKv, AdaKvMode::kBlend, 0);
}

TEST_F(SelectTest, ManyHeadsShareAboveFloorsAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kAdaKv, AdaKvMode::kFloor, 3);
}

TEST_F(SelectTest, ManyHeadsOfAModelShareAsOnTheCpu) {
  CheckManyHeads(BudgetKind::kGlobal, AdaKvMode::kBlend, 1);
}

}  // namespace
}  // namespace blockmgr
