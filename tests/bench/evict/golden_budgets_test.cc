// That changed cases are noticed; golden_check_test runs them all.
#include "bench/evict/golden_budgets.h"

#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

GoldenCase First(const std::string& method) {
  for (const char* file : {"budgets.txt", "lukv_solver.txt"}) {
    auto cases =
        ReadGoldenFile(absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/other/", file));
    EXPECT_THAT(cases, IsOk());
    if (!cases.ok()) continue;
    for (GoldenCase& golden : *cases) {
      if (golden.method == method) return std::move(golden);
    }
  }
  ADD_FAILURE() << "no case of " << method;
  return {};
}

void ExpectFailure(const GoldenCase& golden, const std::string& why) {
  const auto status = CheckGoldenBudgets(golden);
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(*status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
}

// Adds one to the number at `index` of the first line of that kind.
void Change(GoldenCase* golden, const std::string& kind, size_t index) {
  std::string& word = golden->others.at(kind).at(0).at(index);
  word = absl::StrCat(std::stoll(word) + 1);
}

TEST(GoldenBudgetsTest, LeavesOtherMethodsAlone) {
  GoldenCase golden;
  golden.method = "uniform";
  EXPECT_FALSE(CheckGoldenBudgets(golden).has_value());
}

TEST(GoldenBudgetsTest, NoticesOtherPyramids) {
  for (const char* kind : {"kvpress", "adakv", "factory"}) {
    GoldenCase golden = First("pyramid");
    Change(&golden, kind, 2);
    ExpectFailure(golden, absl::StrCat(kind, ": number 2: expected "));
    golden.others.at(kind)[0].pop_back();
    ExpectFailure(golden, absl::StrCat(kind, ": expected 2 numbers, got 3"));
  }
  GoldenCase golden = First("pyramid");
  golden.others.clear();
  ExpectFailure(golden, "expected results to compare with, got none");
  golden.integers["L"] = 0;
  ExpectFailure(golden, "i L: expected a number in [1");
  golden.numbers.clear();
  golden.integers["L"] = 3;
  ExpectFailure(golden, "expected d ratio, got none");
}

TEST(GoldenBudgetsTest, NoticesOtherHeadBudgets) {
  GoldenCase golden = First("headkv");
  ++golden.budgets[5];
  ExpectFailure(golden, "b: number 5: expected ");
  golden.tables.at("score").assign(32, 0.0f);
  ExpectFailure(golden, "a positive sum");
  golden.tables.clear();
  ExpectFailure(golden, "expected tab score, got none");
}

TEST(GoldenBudgetsTest, NoticesOtherOnlineBudgets) {
  for (const char* kind : {"paper", "kvpress"}) {
    GoldenCase golden = First("lukv_online");
    Change(&golden, kind, 7);
    ExpectFailure(golden, absl::StrCat(kind, ": number 7: expected "));
  }
}

TEST(GoldenBudgetsTest, NoticesOtherSolutions) {
  const GoldenCase golden = First("lukv_solver");
  GoldenCase changed = golden;
  changed.others.at("blocks").at(0).back() += "0";
  ExpectFailure(changed, "blocks of head 0: expected ");
  changed = golden;
  // "solve B frac F value V dp D b ..": the value is word 4, the last a budget.
  changed.others.at("solve")[0].at(4) += "1";
  ExpectFailure(changed, "value: number 0: expected ");
  changed = golden;
  changed.others.at("solve")[0].back() += "1";
  ExpectFailure(changed, "b: number ");
  changed.others.at("solve")[0].at(0) = "-1";
  ExpectFailure(changed, "solve: expected a total in [0, ");
  changed = golden;
  changed.others.at("blocks").at(0).at(0) = "9";
  ExpectFailure(changed, "blocks: expected a head below ");
}

}  // namespace
}  // namespace blockmgr
