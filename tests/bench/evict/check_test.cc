// The command line of blockmgr-evict check.
#include <algorithm>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/commands.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_status = -1;  // -1: wrong usage
  std::string output;
  std::string errors;
};

Outcome Check(std::vector<std::string> arguments) {
  CLI::App app;
  Outcome outcome;
  int exit_status = 0;
  AddCheckCommand(app, &exit_status);
  arguments.insert(arguments.begin(), "check");
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
    outcome.exit_status = exit_status;
  } catch (const CLI::ParseError&) {
  }
  outcome.output = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

std::string Golden(const std::string& name) {
  return absl::StrCat(BLOCKMGR_GOLDEN_DIR, "/", name);
}

TEST(CheckCommandTest, FindsTheMethodsAndCounts) {
  const Outcome outcome =
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
  Outcome outcome = Check({file, "--methods", methods});
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
  const Outcome outcome = Check({file, "--methods", Golden("methods.txt")});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("method 'mine': expected one of"));
}

TEST(CheckCommandTest, FailsOnFilesThatItCannotUse) {
  const TempFolder folder;
  const std::string methods = Golden("methods.txt");
  Outcome outcome =
      Check({folder.Write("none.txt", "# none\n"), "--methods", methods});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("expected at least one case"));
  outcome = Check({folder.Write("odd.txt", "case\n"), "--methods", methods});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("odd.txt:1: expected a name"));
  outcome = Check({folder.File("missing.txt"), "--methods", methods});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("missing.txt'"));
  // No methods beside it: nobody named a file of them.
  outcome = Check({folder.Write("two.txt", kTwoCases)});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors,
              AllOf(HasSubstr("check: expected methods.txt beside"),
                    HasSubstr("two.txt or one folder up"),
                    HasSubstr("another file by --methods")));
  outcome = Check({folder.File("two.txt"), "--methods", "/nowhere/m.txt"});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("--methods: expected a readable file"));
}

TEST(CheckCommandTest, WantsFiles) {
  EXPECT_EQ(Check({}).exit_status, -1);
  EXPECT_EQ(Check({"a.txt", "--max-differences", "-1"}).exit_status, -1);
  EXPECT_EQ(Check({"a.txt", "--unknown"}).exit_status, -1);
}

}  // namespace
}  // namespace blockmgr
