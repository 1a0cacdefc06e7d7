#include "blockmgr/eviction/lukv_solver.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// Integer gains, so that every sum and comparison below is exact.
struct Instance {
  std::vector<std::vector<int64_t>> gains;  // by head
  std::vector<int32_t> min_units;

  int64_t total() const {
    int64_t units = 0;
    for (const auto& head : gains) units += static_cast<int64_t>(head.size());
    return units;
  }
  int64_t min_total() const {
    return std::accumulate(min_units.begin(), min_units.end(), int64_t{0});
  }
  std::vector<float> Flat() const {
    std::vector<float> flat;
    for (const auto& head : gains) {
      flat.insert(flat.end(), head.begin(), head.end());
    }
    return flat;
  }
  std::vector<int64_t> Offsets() const {
    std::vector<int64_t> offsets = {0};
    for (const auto& head : gains) {
      offsets.push_back(offsets.back() + static_cast<int64_t>(head.size()));
    }
    return offsets;
  }
  LuKvSolver Solver() const { return {Offsets(), Flat(), min_units}; }
};

Instance RandomInstance(uint64_t seed) {
  std::mt19937_64 random(SplitMix64(seed));
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Instance instance;
  instance.gains.resize(1 + below(4));
  // Few distinct values make ties; many make none.
  const int64_t range = std::vector<int64_t>{2, 4, 50, 1'000'000}[below(4)];
  const bool minima = below(2) == 0;
  for (std::vector<int64_t>& head : instance.gains) {
    head.resize(below(10));
    for (int64_t& gain : head) gain = below(range);
    instance.min_units.push_back(
        minima ? static_cast<int32_t>(below(std::ssize(head) + 1)) : 0);
  }
  return instance;
}

struct NaiveBlock {
  int64_t sum = 0;
  int64_t count = 0;
};

// The regression by its other definition: from where the last block ended, the
// longest prefix of the greatest average.
std::vector<NaiveBlock> NaiveBlocks(const std::vector<int64_t>& gains,
                                    size_t begin) {
  std::vector<NaiveBlock> blocks;
  while (begin < gains.size()) {
    NaiveBlock best;
    NaiveBlock prefix;
    for (size_t i = begin; i < gains.size(); ++i) {
      prefix.sum += gains[i];
      ++prefix.count;
      if (prefix.sum * best.count >= best.sum * prefix.count) best = prefix;
    }
    begin += best.count;
    blocks.push_back(best);
  }
  return blocks;
}

// Unit by unit, the head whose next unit has the greatest regressed gain.
struct Step {
  std::vector<int32_t> budgets;
  bool whole = true;  // every head ends a block
  // The regressed value, [1 / denominator].
  int64_t relaxed = 0;
  int64_t denominator = 1;
};

std::vector<Step> NaivePath(const Instance& instance) {
  const size_t num_heads = instance.gains.size();
  std::vector<std::vector<NaiveBlock>> blocks;
  Step step;
  step.budgets = instance.min_units;
  for (size_t head = 0; head < num_heads; ++head) {
    const auto& gains = instance.gains[head];
    const int32_t min = instance.min_units[head];
    blocks.push_back(NaiveBlocks(gains, min));
    step.relaxed +=
        std::accumulate(gains.begin(), gains.begin() + min, int64_t{0});
  }
  std::vector<size_t> block(num_heads);
  std::vector<int64_t> used(num_heads);  // of the block
  int64_t whole_value = step.relaxed;
  std::vector<Step> path = {step};
  const auto current = [&](size_t head) { return blocks[head][block[head]]; };
  size_t winner = num_heads;
  for (int64_t t = instance.min_total(); t < instance.total(); ++t) {
    if (step.whole) winner = num_heads;
    for (size_t head = 0; head < num_heads && step.whole; ++head) {
      if (block[head] == blocks[head].size()) continue;
      if (winner == num_heads ||
          current(head).sum * current(winner).count >
              current(winner).sum * current(head).count) {
        winner = head;
      }
    }
    ++step.budgets[winner];
    ++used[winner];
    const NaiveBlock taken = current(winner);
    step.whole = used[winner] == taken.count;
    step.relaxed = whole_value * taken.count + taken.sum * used[winner];
    step.denominator = taken.count;
    if (step.whole) {
      whole_value += taken.sum;
      used[winner] = 0;
      ++block[winner];
    }
    path.push_back(step);
  }
  return path;
}

int64_t Value(const Instance& instance, std::span<const int32_t> budgets) {
  int64_t value = 0;
  for (size_t head = 0; head < instance.gains.size(); ++head) {
    const auto& gains = instance.gains[head];
    value += std::accumulate(gains.begin(), gains.begin() + budgets[head],
                             int64_t{0});
  }
  return value;
}

// The best value of every total from min_total() on: max-plus convolution of
// the heads' prefix sums.
std::vector<int64_t> ExactValues(const Instance& instance) {
  std::vector<int64_t> best = {0};
  for (size_t head = 0; head < instance.gains.size(); ++head) {
    const auto& gains = instance.gains[head];
    std::vector<int64_t> prefix = {0};
    for (const int64_t gain : gains) prefix.push_back(prefix.back() + gain);
    const size_t min = instance.min_units[head];
    std::vector<int64_t> next(best.size() + gains.size() - min, -1);
    for (size_t i = 0; i < best.size(); ++i) {
      for (size_t take = min; take <= gains.size(); ++take) {
        int64_t& value = next[i + take - min];
        value = std::max(value, best[i] + prefix[take]);
      }
    }
    best = std::move(next);
  }
  return best;
}

std::vector<int64_t> AllTotals(const Instance& instance) {
  std::vector<int64_t> totals;
  for (int64_t t = instance.min_total(); t <= instance.total(); ++t) {
    totals.push_back(t);
  }
  return totals;
}

TEST(LuKvSolverTest, PavaPoolsWhatRises) {
  std::vector<GainBlock> blocks;
  PavaBlocks(std::vector<float>{3, 1, 2, 1.5f, 0}, &blocks);
  EXPECT_THAT(blocks,
              ElementsAre(GainBlock{3, 1}, GainBlock{4.5, 3}, GainBlock{0, 1}));
  PavaBlocks(std::vector<float>{1, 1, 1}, &blocks);
  EXPECT_THAT(blocks, ElementsAre(GainBlock{3, 3}));
  PavaBlocks(std::vector<float>{-2, -1}, &blocks);
  EXPECT_THAT(blocks, ElementsAre(GainBlock{-3, 2}));
  PavaBlocks({}, &blocks);
  EXPECT_THAT(blocks, IsEmpty());
}

TEST(LuKvSolverTest, SumUnitsKeepsAShorterLastOne) {
  const std::vector<float> gains = {1, 2, 3, 4, 5};
  EXPECT_THAT(SumUnits(gains, 2), ElementsAre(3, 7, 5));
  EXPECT_THAT(SumUnits(gains, 1), ElementsAreArray(gains));
  EXPECT_THAT(SumUnits(gains, 9), ElementsAre(15));
  EXPECT_THAT(SumUnits({}, 4), IsEmpty());
}

TEST(LuKvSolverTest, AgreesWithNaiveSearchAndKeepsItsBounds) {
  for (uint64_t seed = 0; seed < 1'000'000 / kCaseDivisor; ++seed) {
    const Instance instance = RandomInstance(seed);
    const LuKvSolver solver = instance.Solver();
    ASSERT_EQ(solver.min_total(), instance.min_total()) << "seed " << seed;
    ASSERT_EQ(solver.max_total(), instance.total()) << "seed " << seed;
    const std::vector<Step> path = NaivePath(instance);
    const std::vector<int64_t> exact = ExactValues(instance);
    const std::vector<int64_t> totals = AllTotals(instance);
    const std::vector<int32_t> all = solver.BudgetsForAll(totals);
    const size_t num_heads = instance.gains.size();
    ASSERT_EQ(all.size(), totals.size() * num_heads) << "seed " << seed;
    for (size_t i = 0; i < totals.size(); ++i) {
      const std::string where =
          absl::StrCat("seed ", seed, " total ", totals[i]);
      const auto own = std::span(all).subspan(i * num_heads, num_heads);
      const std::vector<int32_t> budgets(own.begin(), own.end());
      ASSERT_EQ(budgets, path[i].budgets) << where;
      const int64_t value = Value(instance, budgets);
      ASSERT_GE(exact[i], value) << where;
      ASSERT_GE(path[i].relaxed, exact[i] * path[i].denominator) << where;
      if (path[i].whole) {
        ASSERT_EQ(exact[i], value) << where;
      }
      for (size_t head = 0; head < num_heads && i > 0; ++head) {
        ASSERT_GE(budgets[head], all[(i - 1) * num_heads + head]) << where;
      }
      if (i % 3 != seed % 3) continue;
      ASSERT_EQ(solver.Budgets(totals[i]), budgets) << where;
    }
  }
}

TEST(LuKvSolverTest, ManyHeadsAreMergedInOrder) {
  for (const int32_t num_heads : {2, 3, 7, 64, 257}) {
    Instance instance;
    std::mt19937_64 random(SplitMix64(num_heads));
    for (int32_t head = 0; head < num_heads; ++head) {
      instance.gains.emplace_back(random() % 40);
      for (int64_t& gain : instance.gains.back()) {
        gain = static_cast<int64_t>(random() % 1000);
      }
    }
    instance.min_units.assign(num_heads, 0);
    const LuKvSolver solver = instance.Solver();
    const std::vector<Step> path = NaivePath(instance);
    const std::vector<int32_t> all = solver.BudgetsForAll(AllTotals(instance));
    for (size_t i = 0; i < path.size(); ++i) {
      ASSERT_TRUE(std::equal(path[i].budgets.begin(), path[i].budgets.end(),
                             all.begin() + i * num_heads))
          << num_heads << " heads, total " << i;
    }
  }
}

TEST(LuKvSolverDeathTest, AbortsOnTotalsOutOfRange) {
  const Instance instance{{{1, 2}, {3}}, {1, 0}};
  const LuKvSolver solver = instance.Solver();
  EXPECT_DEATH(solver.Budgets(0), "check failed");
  EXPECT_DEATH(solver.Budgets(4), "check failed");
  EXPECT_DEATH(solver.BudgetsForAll(std::vector<int64_t>{3, 2}),
               "check failed");
}

}  // namespace
}  // namespace blockmgr
