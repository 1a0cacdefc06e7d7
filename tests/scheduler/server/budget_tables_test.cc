#include "scheduler/server/budget_tables.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kScores[] = R"({"num_layers":1,"num_heads":2,"scores":[[4,1]]})";

class BudgetTablesTest : public testing::Test {
 protected:
  // NAME=FILE of a new file.
  std::string Argument(const std::string& name,
                       const std::string& bytes) const {
    return absl::StrCat(name, "=",
                        folder_.Write(absl::StrCat(name, ".table"), bytes));
  }

  TempFolder folder_;
};

TEST_F(BudgetTablesTest, LoadsBothKindsByName) {
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.calibration_length = 100;
  profile.rho = {0.0f, 1.0f};
  profile.r = {0.0f, 0.0f, 1.0f, 1.0f};
  ASSERT_OK_AND_ASSIGN(
      const BudgetTables tables,
      LoadBudgetTables({Argument("needle", kScores),
                        Argument("llama", EncodeLuKvProfile(profile))}));
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy headkv,
                       ParsePolicy("keydiff | headkv(profile=needle)"));
  ASSERT_OK_AND_ASSIGN(const auto scores, FindBudgetTable(tables, headkv));
  EXPECT_TRUE(std::holds_alternative<HeadScores>(*scores));
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy lukv,
                       ParsePolicy("keydiff | lukv(profile=llama)"));
  ASSERT_OK_AND_ASSIGN(const auto found, FindBudgetTable(tables, lukv));
  EXPECT_TRUE(std::holds_alternative<LuKvProfile>(*found));
}

// HeadKV's file, and counts of one prompt: [1, 1, 2] of int32.
TEST_F(BudgetTablesTest, LoadsTablesAsTheyArePublished) {
  const std::string header =
      "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 2), }";
  const std::string counts =
      absl::StrCat(std::string("\x93NUMPY\1\0\x3f\0", 10), header, "\n",
                   std::string("\x30\0\0\0\x10\0\0\0", 8));
  ASSERT_OK_AND_ASSIGN(
      const BudgetTables tables,
      LoadBudgetTables({Argument("heads", R"({"0-0":[1,2],"0-1":[0.5]})"),
                        Argument("counts", counts)}));
  EXPECT_THAT(std::get<HeadScores>(*tables.at("heads")).scores,
              testing::ElementsAre(1.5f, 0.5f));
  EXPECT_THAT(std::get<HeadScores>(*tables.at("counts")).scores,
              testing::ElementsAre(1.5f, 0.5f));
}

TEST_F(BudgetTablesTest, PoliciesWithoutATableNeedNone) {
  ASSERT_OK_AND_ASSIGN(const auto found, FindBudgetTable({}, EvictionPolicy()));
  EXPECT_EQ(found, nullptr);
}

TEST_F(BudgetTablesTest, AnUnknownNameListsTheKnown) {
  ASSERT_OK_AND_ASSIGN(
      const BudgetTables tables,
      LoadBudgetTables({Argument("b", kScores), Argument("a", kScores)}));
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy,
                       ParsePolicy("keydiff | headkv(profile=c)"));
  EXPECT_THAT(FindBudgetTable(tables, policy),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("(a, b)"), HasSubstr("got 'c'"))));
  EXPECT_THAT(
      FindBudgetTable({}, policy),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("there is none")));
}

TEST_F(BudgetTablesTest, RefusesBadArgumentsAndFiles) {
  EXPECT_THAT(LoadBudgetTables({"needle"}),
              IsInvalid("expected NAME=FILE, got 'needle'"));
  EXPECT_THAT(LoadBudgetTables({"=file"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      LoadBudgetTables({"a=/nonexistent/file"}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("'/nonexistent/file'")));
  EXPECT_THAT(
      LoadBudgetTables({Argument("a", kScores), Argument("a", kScores)}),
      IsInvalid("'a' twice"));
  EXPECT_THAT(LoadBudgetTables({Argument("a", "neither kind")}),
              IsInvalid("a.table"));
}

}  // namespace
}  // namespace blockmgr
