// The command line of blockmgr-evict check.
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/evict_command.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommandOutcome Check(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "check");
  return RunEvictCommand(AddCheckCommand, std::move(arguments));
}

std::string Golden(const std::string& name) {
  return absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/", name);
}

TEST(CheckCommandTest, FindsTheMethodsAndCounts) {
  const CommandOutcome outcome =
      Check({Golden("other/select_ties.txt"), Golden("other/budgets.txt")});
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(outcome.output,
            "method       passed  failed\n"
            "adakv_floor      16       0\n"
            "headkv            8       0\n"
            "lukv_online       4       0\n"
            "pyramid          96       0\n"
            "uniform          40       0\n"
            "all             164       0\n");
}

constexpr char kTwoCases[] =
    "case good\nm uniform\ni KH 1\ni T 3\ni k 1\ntab s0 3 1 3 2\n"
    "kept 0 1 1\nend\n"
    "case bad\nm uniform\ni KH 1\ni T 3\ni k 1\ntab s0 3 1 3 2\n"
    "kept 0 1 2\nend\n";

TEST(CheckCommandTest, FailsAndShowsTheFirstDifference) {
  const TempFolder folder;
  const std::string file = folder.Write("two.txt", kTwoCases);
  const std::string methods = Golden("methods.txt");
  CommandOutcome outcome = Check({file, "--methods", methods});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("two.txt: case bad: kept of head 0"),
                    HasSubstr("expected 2, got 1"), Not(HasSubstr("good"))));
  EXPECT_THAT(outcome.output, HasSubstr("uniform       1       1\n"));
  outcome = Check({file, "--methods", methods, "--max-differences", "0"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_EQ(outcome.errors, "1 more failing cases are not shown\n");
}

TEST(CheckCommandTest, UnknownMethodsFail) {
  const TempFolder folder;
  const std::string file = folder.Write("a.txt", "case a\nm mine\nend\n");
  const CommandOutcome outcome =
      Check({file, "--methods", Golden("methods.txt")});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("method 'mine': expected one of"));
}

TEST(CheckCommandTest, FailsOnFilesThatItCannotUse) {
  const TempFolder folder;
  const std::string methods = Golden("methods.txt");
  const std::string two = folder.Write("two.txt", kTwoCases);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{folder.Write("none.txt", "# none\n"), "--methods", methods},
       "expected at least one case"},
      {{folder.Write("odd.txt", "case\n"), "--methods", methods},
       "odd.txt:1: expected a name"},
      {{folder.File("missing.txt"), "--methods", methods}, "missing.txt'"},
      // No methods beside it: nobody named a file of them.
      {{two},
       absl::StrCat("check: expected methods.txt beside ", two,
                    " or one folder up, or another file by --methods")},
      {{two, "--methods", "/nowhere/m.txt"},
       "--methods: expected a readable file"}};
  for (const auto& [arguments, why] : cases) {
    const CommandOutcome outcome = Check(arguments);
    EXPECT_EQ(outcome.exit_status, 1) << why;
    EXPECT_THAT(outcome.errors, HasSubstr(why));
  }
}

TEST(CheckCommandTest, WantsFiles) {
  EXPECT_EQ(Check({}).exit_status, -1);
  EXPECT_EQ(Check({"a.txt", "--max-differences", "-1"}).exit_status, -1);
  EXPECT_EQ(Check({"a.txt", "--unknown"}).exit_status, -1);
}

}  // namespace
}  // namespace blockmgr
