#include "scheduler/server/flag_checks.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "scheduler/scheduler_options.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  app.add_option("--chunk-policy", chosen)->transform(NameIn<ChunkPolicy>());
  EXPECT_EQ(Refusal(&app, "--chunk-policy equal-progress"), "");
  EXPECT_EQ(chosen, ChunkPolicy::kEqualProgress);
  EXPECT_EQ(Refusal(&app, "--chunk-policy random"),
            "--chunk-policy: expected first-come|equal-progress, got "
            "'random'");
}

TEST(FlagChecksTest, AnyNumberOfTheType) {
  CLI::App app;
  int32_t count = 0;
  uint64_t seed = 0;
  double rate = 0;
  app.add_option("--count", count)->check(AnyNumber<int32_t>());
  app.add_option("--seed", seed)->check(AnyNumber<uint64_t>());
  app.add_option("--rate", rate)->check(AnyNumber<double>());
  for (const char* text : {"nan", "1e3", "2147483648", "x"}) {
    EXPECT_EQ(Refusal(&app, absl::StrCat("--count=", text)),
              absl::StrCat("--count: expected an integer of at most "
                           "2147483647, got ",
                           text));
  }
  EXPECT_THAT(Refusal(&app, "--seed=-1"), HasSubstr("expected an integer"));
  EXPECT_EQ(Refusal(&app, "--rate=fast"),
            "--rate: expected a number, got fast");
  EXPECT_EQ(Refusal(&app,
                    "--count=-2147483648 --seed=18446744073709551615 "
                    "--rate=inf"),
            "");
  EXPECT_EQ(count, INT32_MIN);
  EXPECT_EQ(seed, UINT64_MAX);
  EXPECT_GT(rate, 1e308);
  EXPECT_THAT(app.help(), Not(HasSubstr("2147483647")));
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

TEST(FlagChecksTest, TextOfMessagesIsUtf8) {
  CLI::App app;
  std::string name;
  app.add_option("--name", name, "Of it")->check(Utf8Text());
  for (const char* text : {"plain", "\xC3\xA9", "\xF0\x9F\x98\x80", "?"}) {
    EXPECT_EQ(Refusal(&app, absl::StrCat("--name=", text)), "");
    EXPECT_EQ(name, text);
  }
  // Not begun, not ended, longer than need be, half of a pair, beyond the last.
  for (const char* text : {"a\xA9", "a\xC3", "\xC0\xAF", "\xED\xA0\x80",
                           "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_EQ(Refusal(&app, absl::StrCat("--name=", text)),
              absl::StrCat("--name: expected UTF-8, got '",
                           absl::CHexEscape(text), "'"));
  }
}

}  // namespace
}  // namespace blockmgr
