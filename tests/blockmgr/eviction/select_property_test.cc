// Random evictions against the naive planner and against what must always hold.
#include <algorithm>
#include <numeric>
#include <random>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"

namespace blockmgr {
namespace {

int64_t CountPages(const std::vector<int32_t>& budgets, int32_t page_size) {
  int64_t pages = 0;
  for (const int32_t budget : budgets) pages += CeilDiv(budget, page_size);
  return pages;
}

// Every layer's total, unless all of its heads keep everything.
void ExpectConserved(const EvictionCase& eviction,
                     const std::vector<int32_t>& budgets) {
  if (eviction.policy.budget.kind == BudgetKind::kExternal) return;
  const int32_t num_heads = eviction.shape.num_heads;
  const int32_t page_size = eviction.shape.page_size;
  const int64_t mean =
      std::max(1, eviction.target.TokensPerHead(eviction.range.cut));
  for (int32_t layer = 0; layer < eviction.shape.num_layers; ++layer) {
    int64_t held = 0, held_pages = 0, entries = 0, pages = 0;
    for (int32_t head = 0; head < num_heads; ++head) {
      const int32_t index = layer * num_heads + head;
      const auto size = static_cast<int32_t>(eviction.positions[index].size());
      held += size;
      held_pages += CeilDiv(size, page_size);
      entries += budgets[index];
      pages += CeilDiv(budgets[index], page_size);
    }
    if (eviction.policy.rounding == Rounding::kToken) {
      EXPECT_EQ(entries, std::min(held, num_heads * mean));
    } else {
      EXPECT_EQ(pages, std::min(held_pages,
                                Total(eviction) / eviction.shape.num_layers));
    }
  }
}

void ExpectProtectedKept(const EvictionCase& eviction,
                         const std::vector<int32_t>& budgets,
                         const std::vector<std::vector<int32_t>>& kept) {
  const EvictionPolicy& policy = eviction.policy;
  for (size_t head = 0; head < kept.size(); ++head) {
    std::vector<int32_t> must_keep;
    for (const int32_t position : eviction.positions[head]) {
      if (position < policy.protected_sinks() ||
          position >= eviction.range.length - policy.protected_recent()) {
        must_keep.push_back(position);
      }
    }
    const bool covered =
        budgets[head] >= static_cast<int32_t>(must_keep.size());
    // Whole pages always cover the protected set.
    EXPECT_TRUE(covered || policy.rounding == Rounding::kToken);
    EXPECT_TRUE(!covered || std::includes(kept[head].begin(), kept[head].end(),
                                          must_keep.begin(), must_keep.end()));
  }
}

void CheckCase(const EvictionCase& eviction) {
  const NaivePlan naive = PlanNaively(eviction);
  const std::vector<int32_t> budgets = Budgets(eviction);
  const KeepSets selected = Select(eviction);
  const std::vector<std::vector<int32_t>> kept =
      KeptPositions(eviction, selected);
  ASSERT_EQ(Total(eviction), naive.page_total);
  ASSERT_EQ(budgets, naive.budgets);
  ASSERT_EQ(kept, naive.kept);
  EXPECT_LE(CountPages(budgets, eviction.shape.page_size), Total(eviction));
  for (size_t head = 0; head < kept.size(); ++head) {
    EXPECT_EQ(static_cast<int32_t>(kept[head].size()), budgets[head]);
    EXPECT_EQ(kept[head].empty(), eviction.positions[head].empty());
  }
  ExpectConserved(eviction, budgets);
  ExpectProtectedKept(eviction, budgets, kept);
}

TEST(SelectPropertyTest, AgreesWithTheNaivePlanner) {
  constexpr uint64_t kCases = 200'000;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const EvictionCase eviction = RandomCase(random);
    CheckCase(eviction);
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

TEST(SelectPropertyTest, SmallerTargetsKeepSubsetsForUniformTokens) {
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 1);
    EvictionCase eviction = RandomCase(random);
    eviction.policy.budget.kind = BudgetKind::kUniform;
    eviction.policy.rounding = Rounding::kToken;
    eviction.target.kind = EvictionTarget::Kind::kRatio;
    const int32_t percent = 1 + static_cast<int32_t>(random() % 99);
    eviction.target.ratio = {percent, 100};
    const auto fewer = KeptPositions(eviction, Select(eviction));
    eviction.target.ratio.numerator +=
        1 + static_cast<int32_t>(random() % (100 - percent));
    const auto more = KeptPositions(eviction, Select(eviction));
    for (size_t head = 0; head < fewer.size(); ++head) {
      ASSERT_TRUE(std::includes(more[head].begin(), more[head].end(),
                                fewer[head].begin(), fewer[head].end()))
          << "seed " << seed << " percent " << percent << ": "
          << Describe(eviction);
    }
  }
}

// A second eviction sees what the first one left.
TEST(SelectPropertyTest, RepeatedEvictionsAgreeWithTheNaivePlanner) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 2);
    EvictionCase eviction = RandomCase(random);
    for (int round = 0; round < 3; ++round) {
      const auto kept = KeptPositions(eviction, Select(eviction));
      // The tail since then is covered too; every head holds all of it.
      const int32_t old_cut = eviction.range.cut;
      eviction.range.cut += eviction.shape.page_size * 2;
      eviction.range.length = eviction.range.cut + 1 + round;
      for (size_t head = 0; head < kept.size(); ++head) {
        eviction.positions[head] = kept[head];
        for (int32_t p = old_cut; p < eviction.range.cut; ++p) {
          eviction.positions[head].push_back(p);
        }
        if (eviction.scores.empty()) continue;
        eviction.scores[head] =
            RandomScores(random, eviction.positions[head].size());
      }
      CheckCase(eviction);
    }
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

}  // namespace
}  // namespace blockmgr
