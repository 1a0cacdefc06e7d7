#include "scheduler/server/flag_checks.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "scheduler/scheduler_options.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// What the parser says to it; nothing when it is taken.
std::string Refusal(CLI::App* app, const std::string& arguments) {
  try {
    app->parse(arguments);
  } catch (const CLI::ValidationError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagChecksTest, ANameOfAnEnum) {
  CLI::App app;
  ChunkPolicy chosen = ChunkPolicy::kFirstCome;
  app.add_option("--chunk-policy", chosen)
      ->transform(NameIn(ChunkPolicyNames(), "first_come|equal_progress"));
  EXPECT_EQ(Refusal(&app, "--chunk-policy equal_progress"), "");
  EXPECT_EQ(chosen, ChunkPolicy::kEqualProgress);
  EXPECT_EQ(Refusal(&app, "--chunk-policy random"),
            "--chunk-policy: expected first_come|equal_progress, got "
            "'random'");
}

TEST(FlagChecksTest, ANumberIsFiniteAndInItsRange) {
  CLI::App app;
  double share = 0.5;
  double seconds = 1;
  app.add_option("--share", share, "of all")->check(NumberIn(0, 1));
  app.add_option("--seconds", seconds, "to wait")->check(NumberIn(0));
  for (const char* text : {"nan", "-nan", "inf", "-0.1", "1.1", "x"}) {
    EXPECT_EQ(Refusal(&app, absl::StrCat("--share=", text)),
              absl::StrCat("--share: expected a finite number of 0 to 1, got ",
                           text));
  }
  for (const char* text : {"nan", "inf", "1e999", "-1"}) {
    EXPECT_EQ(Refusal(&app, absl::StrCat("--seconds=", text)),
              absl::StrCat("--seconds: expected a finite number of at least "
                           "0, got ",
                           text));
  }
  EXPECT_EQ(Refusal(&app, "--share 0.25 --seconds 1e6"), "");
  EXPECT_EQ(share, 0.25);
  EXPECT_EQ(seconds, 1e6);
  EXPECT_EQ(Refusal(&app, "--share 0 --seconds 0"), "");
  EXPECT_EQ(Refusal(&app, "--share 1"), "");
  EXPECT_THAT(app.help(), HasSubstr("NUMBER of 0 to 1"));
  EXPECT_THAT(app.help(), HasSubstr("NUMBER of at least 0"));
}

}  // namespace
}  // namespace blockmgr
