#include "program/flag_names.h"

#include <string>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(FlagNamesTest, FieldsThatFlagsSetAreNamedByThem) {
  CLI::App app;
  int number = 0;
  app.add_option("--max-waiting", number);
  app.add_option("--max-num-seqs", number);
  app.add_option("--listen", number);
  app.add_option("--eviction", number);
  app.add_option("--step-timeout", number);
  const FieldFlags fields = {{"eviction.policy", "--eviction"},
                             {"policy", "--eviction"},
                             {"eviction.mode", "--eviction-mode"}};
  const auto named = [&](const std::string& error) {
    return NameFlags(app, error, fields);
  };
  EXPECT_EQ(named("max_waiting: expected 1 to 9 (max_num_seqs), got 0.5."),
            "--max-waiting: expected 1 to 9 (--max-num-seqs), got 0.5.");
  EXPECT_EQ(named("max-waiting: expected 1"), "--max-waiting: expected 1");
  EXPECT_EQ(named("--max-waiting: expected 1"), "--max-waiting: expected 1");
  EXPECT_EQ(named("max-waiting, listen: have no effect"),
            "--max-waiting, --listen: have no effect");
  EXPECT_EQ(named("waiting, listen: have no effect"),
            "waiting, listen: have no effect");
  EXPECT_EQ(named("listen: cannot listen on max-waiting, got listen"),
            "--listen: cannot listen on max-waiting, got listen");
  EXPECT_EQ(named("eviction.policy: window of an eviction"),
            "--eviction: window of an eviction");
  EXPECT_EQ(named("policy: profile: expected the name of a table"),
            "--eviction: profile: expected the name of a table");
  EXPECT_EQ(named("step_timeout_s: expected 1"), "--step-timeout: expected 1");
  EXPECT_EQ(named("eviction.mode: no flag sets it"),
            "eviction.mode: no flag sets it");
  EXPECT_EQ(named("num_scorer_states: no flag sets it"),
            "num_scorer_states: no flag sets it");
  EXPECT_EQ(named(""), "");
}

TEST(FlagNamesTest, WhatTheUserHasTypedStays) {
  CLI::App app;
  int number = 0;
  app.add_option("--max-waiting", number);
  EXPECT_EQ(NameFlags(app,
                      "/tmp/max_waiting: expected max_waiting, got "
                      "'max_waiting', \"max_waiting\" or --max_waiting"),
            "/tmp/max_waiting: expected --max-waiting, got 'max_waiting', "
            "\"max_waiting\" or --max_waiting");
}

TEST(FlagNamesTest, FieldsBehindAPrefixAreFoundWithAndWithoutNum) {
  CLI::App app;
  int number = 0;
  app.add_option("--sim-heads", number);
  app.add_option("--sim-page-size", number);
  app.add_option("--page-size", number);
  EXPECT_EQ(NameFlags(app, "num_heads: expected 1 (page_size)"),
            "num_heads: expected 1 (--page-size)");
  EXPECT_EQ(NameFlags(app, "num_heads: expected 1 (page_size)",
                      FieldsBehind(app, "--sim-")),
            "--sim-heads: expected 1 (--sim-page-size)");
}

TEST(FlagNamesTest, FlagsOfTheSubcommandThatRunsAreNamed) {
  CLI::App app("", "prog");
  int number = 0;
  app.add_option("--seed", number);
  CLI::App* run = app.add_subcommand("run");
  run->add_option("--num-blocks", number);
  run->add_option_group("How much")->add_option("--keep-ratio", number);
  app.add_subcommand("sleep")->add_option("--num-hours", number);
  ASSERT_OK(ParseFlags(&app, {"run", "--num-blocks", "1"}));
  EXPECT_EQ(NameFlags(app, "seed, num_blocks, keep_ratio: expected 1"),
            "--seed, --num-blocks, --keep-ratio: expected 1");
  EXPECT_EQ(NameFlags(app, "num_hours: expected 1"), "num_hours: expected 1");

  testing::internal::CaptureStderr();
  PrintError(app, "num_blocks: expected 2");
  PrintError(*run, "keep-ratio: expected 0.5");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "prog: --num-blocks: expected 2\n"
            "prog run: --keep-ratio: expected 0.5\n");
}

}  // namespace
}  // namespace blockmgr
