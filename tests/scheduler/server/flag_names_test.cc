#include "scheduler/server/flag_names.h"

#include <string>

#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

namespace blockmgr {
namespace {

TEST(FlagNamesTest, FieldsThatFlagsSetAreNamedByThem) {
  CLI::App app;
  int number = 0;
  app.add_option("--max-waiting", number);
  app.add_option("--max-num-seqs", number);
  app.add_option("--listen", number);
  app.add_option("--eviction", number);
  app.add_option("--budget-table", number);
  const auto named = [&app](const std::string& error) {
    return NameFlags(app, error);
  };
  EXPECT_EQ(named("max_waiting: expected 1 to 9 (max_num_seqs), got 0.5."),
            "--max-waiting: expected 1 to 9 (--max-num-seqs), got 0.5.");
  EXPECT_EQ(named("listen: cannot listen on max-waiting, got listen"),
            "--listen: cannot listen on max-waiting, got listen");
  EXPECT_EQ(named("eviction.policy: window of an eviction"),
            "--eviction: window of an eviction");
  EXPECT_EQ(named("policy: profile: expected the name of a table"),
            "--eviction: profile: expected the name of a table");
  EXPECT_EQ(named("budget_table: expected NAME=FILE"),
            "--budget-table: expected NAME=FILE");
  EXPECT_EQ(named("eviction.target.window_keep_ratio: expected 1"),
            "--window-keep-ratio: expected 1");
  EXPECT_EQ(named("num_scorer_states: no flag sets it"),
            "num_scorer_states: no flag sets it");
  EXPECT_EQ(named(""), "");
}

}  // namespace
}  // namespace blockmgr
