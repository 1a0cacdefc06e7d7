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
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

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

PyramidLine LineOf(const GoldenCase& golden) {
  return {.length = golden.integers.at("T"),
          .num_layers = static_cast<int32_t>(golden.integers.at("L")),
          .window = static_cast<int32_t>(golden.integers.at("window")),
          .beta = static_cast<double>(golden.integers.at("beta"))};
}

class PublishedBudgetsGoldenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        cases_, ReadGoldenFile(
                    absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/vectors/budgets.txt")));
  }
  std::vector<GoldenCase> Cases(const std::string& method) const {
    std::vector<GoldenCase> cases;
    for (const GoldenCase& golden : cases_) {
      if (golden.method == method) cases.push_back(golden);
    }
    return cases;
  }

  std::vector<GoldenCase> cases_;
};

TEST_F(PublishedBudgetsGoldenTest, Pyramid) {
  size_t num_with_base = 0;
  const std::vector<GoldenCase> cases = Cases("pyramid");
  EXPECT_THAT(cases, SizeIs(408));
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    const PyramidLine line = LineOf(golden);
    const double kept =
        static_cast<double>(line.length) * (1.0 - golden.numbers.at("ratio"));
    EXPECT_EQ(PyramidKvPress(line, kept), Line(golden, "kvpress"));
    const int64_t base = golden.integers.at("n_kept") - line.window;
    if (base <= 0) continue;
    ++num_with_base;
    EXPECT_EQ(PyramidAdaKv(line, base), Line(golden, "adakv"));
    EXPECT_EQ(PyramidFactory(line, base + line.window),
              Line(golden, "factory"));
  }
  EXPECT_EQ(num_with_base, 330u);
}

TEST_F(PublishedBudgetsGoldenTest, HeadKv) {
  const std::vector<GoldenCase> cases = Cases("headkv");
  EXPECT_THAT(cases, SizeIs(8));
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    EXPECT_THAT(HeadKvBudgetsReleased(
                    golden.tables.at("score"), golden.integers.at("base"),
                    golden.numbers.at("beta"), golden.numbers.at("temp")),
                ElementsAreArray(golden.budgets));
  }
}

TEST_F(PublishedBudgetsGoldenTest, LuKv) {
  const std::vector<GoldenCase> cases = Cases("lukv_online");
  EXPECT_THAT(cases, SizeIs(4));
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    const std::vector<float>& r = golden.tables.at("r");
    const int64_t length = golden.integers.at("T");
    EXPECT_EQ(LuKvBudgetsPaper(r, length), Line(golden, "paper"));
    EXPECT_EQ(LuKvBudgetsKvPress(r, length), Line(golden, "kvpress"));
  }
}

TEST(PublishedBudgetsTest, OneLayerGetsTheMean) {
  const PyramidLine line{.length = 100, .num_layers = 1, .window = 8};
  EXPECT_THAT(PyramidKvPress(line, 50.0), ElementsAre(50));
  EXPECT_THAT(PyramidAdaKv(line, 42), ElementsAre(42));
  EXPECT_THAT(PyramidFactory(line, 50), ElementsAre(42));
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

TEST(PublishedBudgetsTest, KvPressKeepsAtLeastOneEntry) {
  const std::vector<float> r = {1.0f, 1.0f, 0.0f};
  EXPECT_THAT(LuKvBudgetsPaper(r, 10), ElementsAre(0, 0, 10));
  EXPECT_THAT(LuKvBudgetsKvPress(r, 10), ElementsAre(1, 1, 10));
}

}  // namespace
}  // namespace blockmgr
