// That changed cases are noticed; golden_check_test runs them all.
#include "bench/evict/golden_budgets.h"

#include <map>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/golden_files.h"
#include "tests/testing/is_invalid.h"

namespace blockmgr {
namespace {

void ExpectFailure(
    const GoldenCase& golden, const std::string& why,
    const std::map<std::string, GoldenMethod>& methods = AllGoldenMethods()) {
  const auto status = CheckGoldenBudgets(golden, methods);
  ASSERT_TRUE(status.has_value());
  EXPECT_THAT(*status, IsInvalid(why));
}

// Adds one to the number at `index` of the first line of that kind.
void Change(GoldenCase* golden, const std::string& kind, size_t index) {
  std::string& word = golden->others.at(kind).at(0).at(index);
  word = absl::StrCat(std::stoll(word) + 1);
}

TEST(GoldenBudgetsTest, LeavesOtherMethodsAlone) {
  GoldenCase golden;
  golden.method = "uniform";
  golden.kept[0] = {1};
  golden.budgets = {1};
  EXPECT_FALSE(CheckGoldenBudgets(golden, AllGoldenMethods()).has_value());
  // Nor is there anything to compare with here.
  golden = FirstGoldenCase("pyramid");
  golden.others.clear();
  EXPECT_FALSE(CheckGoldenBudgets(golden, AllGoldenMethods()).has_value());
}

TEST(GoldenBudgetsTest, NoticesOtherPyramids) {
  for (const char* kind : {"kvpress", "adakv", "factory"}) {
    GoldenCase golden = FirstGoldenCase("pyramid");
    Change(&golden, kind, 2);
    ExpectFailure(golden, absl::StrCat(kind, ": number 2: expected "));
    golden.others.at(kind)[0].pop_back();
    ExpectFailure(golden, absl::StrCat(kind, ": expected 2 numbers, got 3"));
  }
  GoldenCase golden = FirstGoldenCase("pyramid");
  golden.integers["L"] = 0;
  ExpectFailure(golden, "i L: expected a number in [1");
  golden.integers["L"] = 3;
  golden.integers["T"] = int64_t{1} << 30;
  ExpectFailure(golden, "i T: expected a number in [1");
  golden.integers.erase("T");
  ExpectFailure(golden, "expected i T, got none");
  golden.integers["T"] = 64;
  golden.numbers.clear();
  ExpectFailure(golden, "expected a case with 'ratio'");
  golden.others["mine"] = {{"1", "2", "3"}};
  golden.numbers["ratio"] = 0.5;
  golden.others.erase("adakv");
  golden.others.erase("factory");
  golden.others.erase("kvpress");
  ExpectFailure(golden, "method 'pyramid/mine': expected one of the methods");
}

// The policy of the methods file decides, not the name.
TEST(GoldenBudgetsTest, RunsThePolicyOfTheMethod) {
  const GoldenCase golden = FirstGoldenCase("pyramid");
  std::map<std::string, GoldenMethod> methods = AllGoldenMethods();
  GoldenMethod& method = methods.at("pyramid/adakv");
  const std::string policy = method.policy;
  method.policy =
      "snapkv(window={window}) | adakv | topk | round(token) | "
      "parity(released)";
  ExpectFailure(golden, "adakv: number 0: expected ", methods);
  method.policy = "tova | external | topk";
  ExpectFailure(golden, "policy: expected one with parity(..)", methods);
  method.policy = "tova | lukv(profile=x) | topk";
  ExpectFailure(golden, "expected tab score or r, got none", methods);
  method.policy = "tova | pyramid | topk | round(token) | parity(released)";
  ExpectFailure(golden, "scorer: expected snapkv, got tova", methods);
  method.policy = policy;
  method.past.clear();
  ExpectFailure(golden, "adakv: number 0: expected ", methods);
}

TEST(GoldenBudgetsTest, NoticesOtherHeadBudgets) {
  GoldenCase golden = FirstGoldenCase("headkv");
  ++golden.budgets[5];
  ExpectFailure(golden, "b: number 5: expected ");
  golden.tables.at("score").assign(32, 0.0f);
  ExpectFailure(golden, "scores: expected one that is not 0");
  golden.tables.clear();
  ExpectFailure(golden, "expected i L, got none");
  golden.tables["score"] = {};
  ExpectFailure(golden, "expected tab score, got none");
}

TEST(GoldenBudgetsTest, NoticesOtherOnlineBudgets) {
  for (const char* kind : {"paper", "kvpress"}) {
    GoldenCase golden = FirstGoldenCase("lukv_online");
    Change(&golden, kind, 7);
    ExpectFailure(golden, absl::StrCat(kind, ": number 7: expected "));
  }
}

TEST(GoldenBudgetsTest, NoticesOtherSolutions) {
  const GoldenCase golden = FirstGoldenCase("lukv_solver");
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
