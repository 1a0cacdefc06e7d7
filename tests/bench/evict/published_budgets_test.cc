// golden_check_test compares the other budgets with the published programs.
#include "bench/evict/published_budgets.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/golden.h"
#include "blockmgr/eviction/budget_table.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// The one line of `golden` that begins with `key`; empty without it.
std::vector<int64_t> Line(const GoldenCase& golden, const std::string& key) {
  std::vector<int64_t> values;
  const auto found = golden.others.find(key);
  if (found == golden.others.end()) return values;
  for (const std::string& word : found->second.at(0)) {
    values.push_back(std::stoll(word));
  }
  return values;
}

// golden_check_test makes the entries of every case, so brief runs leave long
// contexts out there; here are all of them.
TEST(PublishedBudgetsTest, PyramidsAreThoseOfTheGoldenVectors) {
  ASSERT_OK_AND_ASSIGN(const std::vector<GoldenCase> cases,
                       ReadGoldenFile(absl::StrCat(BLOCKMGR_GOLDEN_DIR,
                                                   "/vectors/budgets.txt")));
  int32_t num_pyramids = 0;
  int32_t num_with_base = 0;
  for (const GoldenCase& golden : cases) {
    if (golden.method != "pyramid") continue;
    SCOPED_TRACE(golden.name);
    ++num_pyramids;
    const PyramidLine line = {
        .length = golden.integers.at("T"),
        .num_layers = static_cast<int32_t>(golden.integers.at("L")),
        .window = static_cast<int32_t>(golden.integers.at("window")),
        .beta = static_cast<double>(golden.integers.at("beta"))};
    const double kept =
        static_cast<double>(line.length) * (1.0 - golden.numbers.at("ratio"));
    EXPECT_EQ(PyramidKvPress(line, kept), Line(golden, "kvpress"));
    const int64_t base = golden.integers.at("n_kept") - line.window;
    if (base <= 0) continue;
    ++num_with_base;
    EXPECT_EQ(PyramidAdaKv(line, base), Line(golden, "adakv"));
    EXPECT_EQ(PyramidFactory(line, base),
              Line(golden, "factory"));
  }
  EXPECT_EQ(num_pyramids, 408);
  EXPECT_EQ(num_with_base, 330);
}

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
