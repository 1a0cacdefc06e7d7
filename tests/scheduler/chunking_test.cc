#include "scheduler/chunking.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

int32_t Share(int32_t budget, int32_t unit, std::vector<int32_t> gaps) {
  return EqualShare(budget, unit, &gaps);
}

TEST(EqualShareTest, DividesTheBudgetInWholeUnits) {
  EXPECT_EQ(Share(100, 1, {200, 300}), 50);
  EXPECT_EQ(Share(100, 16, {200, 300}), 48);
  EXPECT_EQ(Share(99, 1, {200, 300, 400}), 33);
}

TEST(EqualShareTest, WhoNeedsLessLeavesTheRestToOthers) {
  EXPECT_EQ(Share(100, 1, {10, 300, 400}), 45);
  EXPECT_EQ(Share(100, 1, {400, 20, 10, 300}), 35);
}

TEST(EqualShareTest, IsTheLargestGapWhenAllFit) {
  EXPECT_EQ(Share(100, 16, {10, 40}), 40);
  EXPECT_EQ(Share(100, 16, {3}), 16);
}

TEST(EqualShareTest, IsAtLeastOneUnit) {
  EXPECT_EQ(Share(20, 16, {100, 100}), 16);
  EXPECT_EQ(Share(0, 16, {100}), 16);
  EXPECT_EQ(Share(-5, 16, {100}), 16);
  EXPECT_EQ(Share(100, 16, {}), 16);
}

// Handing out one token after the other to whoever has least gives as much.
TEST(EqualShareTest, AgreesWithHandingOutToken) {
  uint64_t random = 7;
  const auto below = [&random](uint64_t n) {
    random = SplitMix64(random);
    return static_cast<int32_t>(random % n);
  };
  for (int32_t round = 0; round < 500; ++round) {
    std::vector<int32_t> gaps(1 + below(6));
    for (int32_t& gap : gaps) gap = 1 + below(60);
    const int32_t budget = below(200);
    std::vector<int32_t> taken(gaps.size(), 0);
    bool progress = true;
    int32_t left = budget;
    while (progress) {
      progress = false;
      // A round that cannot serve everybody who lacks tokens serves nobody.
      const auto lacking =
          std::ranges::count_if(gaps, [](int32_t gap) { return gap > 0; });
      if (lacking == 0 || lacking > left) break;
      for (size_t i = 0; i < gaps.size(); ++i) {
        if (gaps[i] == 0) continue;
        --gaps[i];
        ++taken[i];
        --left;
        progress = true;
      }
    }
    std::vector<int32_t> wanted(gaps.size());
    for (size_t i = 0; i < gaps.size(); ++i) wanted[i] = gaps[i] + taken[i];
    EXPECT_EQ(Share(budget, 1, wanted),
              std::max(1, *std::ranges::max_element(taken)))
        << "round " << round;
  }
}

}  // namespace
}  // namespace blockmgr
