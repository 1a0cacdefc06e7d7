// All golden vectors, and that a changed one is noticed.
#include "bench/evict/golden_check.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/golden_files.h"
#include "tests/testing/case_count.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

struct GoldenFile {
  const char* name;
  size_t num_cases;
};

class GoldenVectorsTest : public ::testing::TestWithParam<GoldenFile> {};

TEST_P(GoldenVectorsTest, AllPass) {
  const auto& methods = AllGoldenMethods();
  const std::vector<GoldenCase> cases = GoldenCasesOf(GetParam().name);
  EXPECT_EQ(cases.size(), GetParam().num_cases);
  for (const GoldenCase& golden : cases) {
    // Contexts this long take most of the time.
    const auto length = golden.integers.find("T");
    if (kBrief && length != golden.integers.end() && length->second > 20'000) {
      continue;
    }
    EXPECT_THAT(CheckGoldenCase(golden, methods), IsOk()) << golden.name;
  }
}

// `other` has other seeds, shapes and parameters.
INSTANTIATE_TEST_SUITE_P(
    Files, GoldenVectorsTest,
    ::testing::Values(GoldenFile{"vectors/qkv.txt", 332},
                      GoldenFile{"vectors/select_ties.txt", 84},
                      GoldenFile{"vectors/budgets.txt", 420},
                      GoldenFile{"vectors/lukv_solver.txt", 40},
                      GoldenFile{"other/qkv.txt", 168},
                      GoldenFile{"other/select_ties.txt", 56},
                      GoldenFile{"other/budgets.txt", 108},
                      GoldenFile{"other/lukv_solver.txt", 25}));

class GoldenCheckTest : public ::testing::Test {
 protected:
  void ExpectFailure(const GoldenCase& golden, const std::string& why) {
    EXPECT_THAT(CheckGoldenCase(golden, methods_), IsInvalid(why));
  }
  const std::map<std::string, GoldenMethod>& methods_ = AllGoldenMethods();
};

TEST_F(GoldenCheckTest, NoticesAnotherPosition) {
  std::set<std::string> methods;
  for (const char* file : {"qkv.txt", "select_ties.txt"}) {
    for (const GoldenCase& golden :
         GoldenCasesOf(absl::StrCat("other/", file))) {
      methods.insert(golden.method);
    }
  }
  // The others are of budgets alone (golden_budgets_test.cc).
  EXPECT_EQ(methods.size() + 6, methods_.size());
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    GoldenCase golden = FirstGoldenCase(method);
    ASSERT_THAT(CheckGoldenCase(golden, methods_), IsOk());
    std::vector<int32_t>& kept = golden.kept.at(1);
    ASSERT_FALSE(kept.empty());
    const int32_t last = kept.back();
    kept.back() = last + 1;
    ExpectFailure(golden, "kept of head 1: expected ");
    kept.pop_back();
    ExpectFailure(golden, "kept of head 1");
    kept.push_back(last);
    EXPECT_THAT(CheckGoldenCase(golden, methods_), IsOk());
    golden.kept.erase(1);
    ExpectFailure(golden, "kept: expected a line for each of");
  }
}

TEST_F(GoldenCheckTest, NoticesOtherBudgetsAndScores) {
  for (const char* method :
       {"adakv_blend/snapkv_max7_adakv", "critical_budget/snapkv_max7_adakv",
        "critical_ada_kvpress/snapkv_avg5"}) {
    GoldenCase golden = FirstGoldenCase(method);
    ++golden.budgets.back();
    ExpectFailure(golden, "b: expected ");
  }
  for (GoldenCase golden : GoldenCasesOf("other/qkv.txt")) {
    if (golden.scores.empty()) continue;
    SCOPED_TRACE(golden.name);
    double& score = golden.scores.at(1).back();
    score *= 1.0001;
    ExpectFailure(golden, "sc of head 1: position 54: expected ");
  }
}

TEST_F(GoldenCheckTest, NoticesOtherInputs) {
  GoldenCase golden = FirstGoldenCase("uniform/keydiff");
  ++golden.inputs.at("K").seed;
  EXPECT_THAT(CheckGoldenCase(golden, methods_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("hash")));
  golden = FirstGoldenCase("uniform/keydiff");
  std::swap(golden.inputs.at("K").dims[0], golden.inputs.at("K").dims[1]);
  ExpectFailure(golden, "in K: expected shape [2, 72, 8], got [72, 2, 8]");
  golden = FirstGoldenCase("uniform/keydiff");
  golden.inputs.erase("K");
  ExpectFailure(golden, "keys");
  golden = FirstGoldenCase("uniform");
  golden.tables.at("s0").pop_back();
  ExpectFailure(golden, "tab s0: expected ");
}

TEST_F(GoldenCheckTest, UnknownMethodsFail) {
  GoldenCase golden = FirstGoldenCase("uniform/keydiff");
  golden.method = "uniform/mine";
  ExpectFailure(golden, "method 'uniform/mine': expected one of the methods");
}

TEST_F(GoldenCheckTest, RefusesSizesThatDoNotFit) {
  GoldenCase golden = FirstGoldenCase("uniform/keydiff");
  golden.integers.erase("KH");
  ExpectFailure(golden, "expected i KH, got none");
  golden.integers["KH"] = 0;
  ExpectFailure(golden, "i KH: expected a size");
  golden.integers["KH"] = 3;
  ExpectFailure(golden, "expected a multiple of KH");
}

}  // namespace
}  // namespace blockmgr
