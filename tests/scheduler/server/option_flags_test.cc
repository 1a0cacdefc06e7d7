#include "scheduler/server/option_flags.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler_options.h"

namespace blockmgr {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

void AddFlags(CLI::App* app, SchedulerOptions* options) {
  VisitSchedulerOptions(*options, OptionFlags(app, "Scheduler"));
}

SchedulerOptions Parse(const std::string& arguments) {
  CLI::App app;
  SchedulerOptions options;
  AddFlags(&app, &options);
  app.parse(arguments);
  return options;
}

TEST(OptionFlagsTest, EachSetsItsOption) {
  const SchedulerOptions options = Parse(
      "--max-num-batched-tokens 101 --max-num-seqs 102 --max-model-len 103 "
      "--long-prefill-token-threshold 104 --watermark 0.25 "
      "--max-steps-in-flight 3 --num-speculative-tokens 107 "
      "--max-waiting 105 --max-waiting-tokens 5000000000 --query-window 106 "
      "--no-enable-prefix-caching --reuse-partial-blocks "
      "--compaction in-place --max-num-blocks 108 --max-tenants 109 "
      "--fair-share");
  EXPECT_EQ(options.max_num_batched_tokens, 101);
  EXPECT_EQ(options.max_num_seqs, 102);
  EXPECT_EQ(options.max_model_len, 103);
  EXPECT_EQ(options.long_prefill_token_threshold, 104);
  EXPECT_EQ(options.watermark, 0.25);
  EXPECT_EQ(options.max_steps_in_flight, 3);
  EXPECT_EQ(options.num_speculative_tokens, 107);
  EXPECT_EQ(options.max_waiting, 105);
  EXPECT_EQ(options.max_waiting_tokens, 5'000'000'000);
  EXPECT_EQ(options.query_window, 106);
  EXPECT_FALSE(options.enable_prefix_caching);
  EXPECT_TRUE(options.reuse_partial_blocks);
  EXPECT_EQ(options.compaction, CompactionPreference::kInPlace);
  EXPECT_EQ(options.max_num_blocks, 108);
  EXPECT_EQ(options.max_tenants, 109);
  EXPECT_TRUE(options.fair_share);
}

TEST(OptionFlagsTest, EachPolicySetsItsOption) {
  const SchedulerOptions options = Parse(
      "--scheduling-policy prefix --admission max-utilization "
      "--chunk-policy equal-progress --prefix-aging 201 --max-bypasses 202 "
      "--min-prefix-wait-tokens 203 --max-prefix-wait-steps 204 "
      "--max-long-prefills 205");
  EXPECT_EQ(options.policy, SchedulingPolicy::kPrefix);
  EXPECT_EQ(options.admission, AdmissionPolicy::kMaxUtilization);
  EXPECT_EQ(options.chunk_policy, ChunkPolicy::kEqualProgress);
  EXPECT_EQ(options.prefix_aging, 201);
  EXPECT_EQ(options.max_bypasses, 202);
  EXPECT_EQ(options.min_prefix_wait_tokens, 203);
  EXPECT_EQ(options.max_prefix_wait_steps, 204);
  EXPECT_EQ(options.max_long_prefills, 205);
}

TEST(OptionFlagsTest, RefusesUnknownNamesOfChoices) {
  for (const char* flag : {"--scheduling-policy", "--admission",
                           "--chunk-policy", "--compaction"}) {
    EXPECT_THROW(Parse(std::string(flag).append(" nonsense")),
                 CLI::ValidationError)
        << flag;
  }
}

TEST(OptionFlagsTest, HelpHasChoicesAndDefaults) {
  CLI::App app;
  SchedulerOptions options;
  AddFlags(&app, &options);
  const std::string help = app.help();
  for (const char* text :
       {"fcfs|priority|prefix", "vllm|guaranteed|max-utilization",
        "first-come|equal-progress", "fresh|in-place",
        "--no-enable-prefix-caching", "(on by default)"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
  // CLI11 writes a default as =2048 before version 2.4, and as [2048] since.
  for (const std::string value : {"fcfs", "fresh", "2048", "0.01"}) {
    EXPECT_THAT(help,
                AnyOf(HasSubstr("=" + value), HasSubstr("[" + value + "]")));
  }
}

TEST(OptionFlagsTest, AUnitIsNoPartOfAFlag) {
  CLI::App app;
  double timeout_s = 5;
  OptionFlags(&app, "Any").Number("step_timeout_s", timeout_s, 0, 9, "Seconds");
  app.parse("--step-timeout 7.5");
  EXPECT_EQ(timeout_s, 7.5);
}

}  // namespace
}  // namespace blockmgr
