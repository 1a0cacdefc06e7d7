// The device selection against the CPU's, bit for bit.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/selection/select_checks.h"
#include "tests/kernels/cuda/selection/select_runner.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

class SelectTest : public DeviceTest {};

TEST_F(SelectTest, ShortHeadsEqualTheCpu) {
  for (uint64_t seed = 0; seed < CountDeviceCases(40); ++seed) {
    ASSERT_EQ(CheckSelect(seed, false, false), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, LongHeadsEqualTheCpu) {
  for (uint64_t seed = 1000; seed < 1000 + CountDeviceCases(16); ++seed) {
    ASSERT_EQ(CheckSelect(seed, true, false), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, HeadsOfManyTurnsEqualTheCpu) {
  for (uint64_t seed = 0; seed < CountDeviceCases(8); ++seed) {
    ASSERT_EQ(CheckManyTurns(seed), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, HeadsThatJustFitEqualTheCpu) {
  for (uint64_t seed = 0; seed < CountDeviceCases(12); ++seed) {
    ASSERT_EQ(CheckCacheEdge(seed), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, DividedHeadsEqualTheCpu) {
  for (uint64_t seed = 0; seed < CountDeviceCases(24); ++seed) {
    ASSERT_EQ(CheckDivided(seed), "") << "seed " << seed;
  }
}

// One head less, one as long and one longer than those that are divided, in
// chunks that end with the head and behind it, with budgets from nothing to
// everything. Ties are in all chunks.
TEST_F(SelectTest, HeadsAreDividedFromAnyLengthOn) {
  constexpr int32_t kDivideFrom = 512;
  EvictionCase c = GivenBudgets({511, 512, 513, 767, 768, 769, 1280}, 4);
  c.policy.selector.kind = SelectorKind::kTopK;
  c.policy.protect = {.sinks = 2, .recent = 3};
  for (const int32_t num_scores : {1, 2, 500}) {
    Rng rng(num_scores);
    c.scores.clear();
    for (const std::vector<int32_t>& positions : c.positions) {
      c.scores.emplace_back();
      for (size_t i = 0; i < positions.size(); ++i) {
        c.scores.back().push_back(
            static_cast<float>(RandomInt(rng, 1, num_scores)));
      }
    }
    for (const int32_t budget : {0, 1, 5, 6, 255, 300, 508, 511, 512, 1280}) {
      std::ranges::fill(c.external, budget);
      EXPECT_EQ(Difference(c, SelectOnDevice({c}, 256, {}, kDivideFrom)), "")
          << num_scores << " scores, budget " << budget;
    }
  }
}

TEST_F(SelectTest, FloorsEqualTheCpu) {
  for (uint64_t seed = 2000; seed < 2000 + CountDeviceCases(12); ++seed) {
    ASSERT_EQ(CheckSelect(seed, seed % 2 == 1, true), "") << "seed " << seed;
  }
}

TEST_F(SelectTest, FloorsOfCloseScoresEqualTheCpu) {
  for (uint64_t seed = 0; seed < CountDeviceCases(24); ++seed) {
    ASSERT_EQ(CheckCloseFloors(seed), "") << "seed " << seed;
  }
}

// Two sequences in a call get what each gets alone.
TEST_F(SelectTest, SequencesDoNotMeet) {
  for (uint64_t seed = 0; seed < CountDeviceCases(8); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const EvictionCase first = RandomCase(rng);
    EvictionCase second = first;
    MakeLong(rng, RandomInt(rng, 300, 1100), &second);
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
  EvictionCase c = GivenBudgets(std::vector<int32_t>(41, 40), 4);
  c.policy.selector.kind = SelectorKind::kTopK;
  c.policy.protect = {.sinks = 2, .recent = 3};
  std::iota(c.external.begin(), c.external.end(), 0);
  for (const float score : {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), -1.5f}) {
    c.scores.assign(41, std::vector<float>(40, score));
    const SelectOutcome got = SelectOnDevice({c}, 256, {});
    EXPECT_EQ(Difference(c, got), "") << "score " << score;
  }
}

TEST_F(SelectTest, ManyTiesGoToTheLowestPositions) {
  EXPECT_EQ(CheckManyTies(7), "");
}

// All scores equal and not, by token and by page, for 40 heads; one of these,
// `seed`, for 304, which take the emulator long, and under a sanitizer too long
// to have it more than once.
void ExpectManyHeads(BudgetKind kind, AdaKvMode mode, uint64_t seed) {
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(CheckManyHeads(kind, mode, 40, i), "") << "seed " << i;
  }
  if (kBrief && kind != BudgetKind::kGlobal) return;
  EXPECT_EQ(CheckManyHeads(kind, mode, 304, seed), "") << "seed " << seed;
}

TEST_F(SelectTest, ManyHeadsShareABlendAsOnTheCpu) {
  ExpectManyHeads(BudgetKind::kAdaKv, AdaKvMode::kBlend, 0);
}

TEST_F(SelectTest, ManyHeadsShareAboveFloorsAsOnTheCpu) {
  ExpectManyHeads(BudgetKind::kAdaKv, AdaKvMode::kFloor, 3);
}

TEST_F(SelectTest, ManyHeadsOfAModelShareAsOnTheCpu) {
  ExpectManyHeads(BudgetKind::kGlobal, AdaKvMode::kBlend, 1);
}

}  // namespace
}  // namespace blockmgr
