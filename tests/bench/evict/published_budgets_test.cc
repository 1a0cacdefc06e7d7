// golden_check_test compares with the published programs themselves.
#include "bench/evict/published_budgets.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// 2.1 is a little above 21 / 10, so that 21 // 2.1 is 9 in Python, although
// 21 / 2.1 is 10: the pool is 9 entries, the equal share 12.
TEST(PublishedBudgetsTest, DividesLikePython) {
  EXPECT_THAT(HeadKvBudgetsReleased(std::vector<float>{1, 0}, 21, 2.1, 1.0),
              ElementsAre(30, 12));
}

// With the window protected, the library's shares are those of the released
// program, to within its rounding of the total, which the library conserves.
TEST(PublishedBudgetsTest, TheLibraryGivesHeadsAlike) {
  const HeadShape shape{.num_layers = 4, .num_heads = 8};
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy,
                       ParsePolicy("knorm | headkv(profile=x,share=1.5) | "
                                   "protect(recent=32) | round(token)"));
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    HeadScores table{shape.num_layers, shape.num_heads, {}};
    for (int head = 0; head < 32; ++head) {
      table.scores.push_back(static_cast<float>(1 + random() % 1000) *
                             (random() % 5 == 0 ? 100.0f : 1.0f));
    }
    const std::vector<int32_t> budgets = TableBudgets(
        policy,
        {.kind = EvictionTarget::Kind::kTokens, .ratio = {}, .tokens = 128},
        shape, {.cut = 5000, .length = 5000}, table);
    const std::vector<int64_t> released =
        HeadKvBudgetsReleased(table.scores, 96, 1.5, 1.0);
    EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), 0), 32 * 128);
    for (size_t head = 0; head < budgets.size(); ++head) {
      EXPECT_NEAR(budgets[head] - 32, static_cast<double>(released[head]), 1.0)
          << "head " << head;
    }
  }
}

TEST(PublishedBudgetsTest, TemperatureZeroSharesEqually) {
  EXPECT_THAT(HeadKvBudgetsReleased(std::vector<float>{1, 0, 5}, 30, 1.5, 0.0),
              Each(30));
}

// 0.5 to the power of 1000 is still a double, a third is none.
TEST(PublishedBudgetsTest, PowersThatVanishAreOfTheLargest) {
  EXPECT_THAT(HeadKvBudgetsReleased(std::vector<float>{1, 1}, 30, 1.0, 1000.0),
              Each(30));
  EXPECT_THAT(
      HeadKvBudgetsReleased(std::vector<float>{1, 1, 1}, 30, 1.0, 1000.0),
      Each(30));
  EXPECT_THAT(
      HeadKvBudgetsReleased(std::vector<float>{1, 3, 2}, 30, 1.5, 1000.0),
      ElementsAre(10, 70, 10));
}

}  // namespace
}  // namespace blockmgr
