#include "scheduler/server/scheduler_flags.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr SchedulerFlagTexts kAllFlags{
    .max_num_batched_tokens = "a",
    .max_num_seqs = "b",
    .max_model_len = "c",
    .long_prefill_token_threshold = "d",
    .watermark = "e",
    .max_steps_in_flight = "f",
    .num_speculative_tokens = "t",
    .max_waiting = "g",
    .max_waiting_tokens = "u",
    .query_window = "h",
    .enable_prefix_caching = "i",
    .reuse_partial_blocks = "s",
    .compaction = "j",
};
constexpr PolicyFlagTexts kAllPolicies{
    .scheduling_policy = "k",
    .admission = "l",
    .chunk_policy = "m",
    .prefix_aging = "n",
    .max_bypasses = "o",
    .min_prefix_wait_tokens = "p",
    .max_prefix_wait_steps = "q",
    .max_long_prefills = "r",
};

SchedulerOptions Parse(const std::string& arguments) {
  CLI::App app;
  SchedulerOptions options;
  AddSchedulerFlags(&app, kAllFlags, &options);
  AddPolicyFlags(&app, kAllPolicies, &options);
  app.parse(arguments);
  return options;
}

TEST(SchedulerFlagsTest, EachSetsItsOption) {
  const SchedulerOptions options = Parse(
      "--max-num-batched-tokens 101 --max-num-seqs 102 --max-model-len 103 "
      "--long-prefill-token-threshold 104 --watermark 0.25 "
      "--max-steps-in-flight 3 --num-speculative-tokens 107 "
      "--max-waiting 105 --max-waiting-tokens 5000000000 --query-window 106 "
      "--no-enable-prefix-caching --reuse-partial-blocks "
      "--compaction in-place");
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
}

TEST(PolicyFlagsTest, EachSetsItsOption) {
  const SchedulerOptions options = Parse(
      "--scheduling-policy prefix --admission max_utilization "
      "--chunk-policy equal_progress --prefix-aging 201 --max-bypasses 202 "
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

TEST(SchedulerFlagsTest, RefusesUnknownNamesOfPolicies) {
  for (const char* flag : {"--scheduling-policy", "--admission",
                           "--chunk-policy", "--compaction"}) {
    EXPECT_THROW(Parse(std::string(flag).append(" nonsense")),
                 CLI::ValidationError)
        << flag;
  }
}

// The names that --help gives the choices and defaults are written by hand.
TEST(SchedulerFlagsTest, NamedDefaultsAndChoicesAreTheTrueOnes) {
  const SchedulerOptions defaults;
  const SchedulerOptions named = Parse(
      "--scheduling-policy fcfs --admission vllm --chunk-policy first_come "
      "--compaction fresh --enable-prefix-caching");
  EXPECT_EQ(named.policy, defaults.policy);
  EXPECT_EQ(named.admission, defaults.admission);
  EXPECT_EQ(named.chunk_policy, defaults.chunk_policy);
  EXPECT_EQ(named.compaction, defaults.compaction);
  EXPECT_EQ(named.enable_prefix_caching, defaults.enable_prefix_caching);

  CLI::App app;
  SchedulerOptions options;
  AddSchedulerFlags(&app, kAllFlags, &options);
  AddPolicyFlags(&app, kAllPolicies, &options);
  const std::string help = app.help();
  const auto check = [&help](const auto& names, const std::string& chosen) {
    for (const auto& [name, value] : names) {
      EXPECT_THAT(help, HasSubstr(name));
    }
    EXPECT_TRUE(names.contains(chosen));
    EXPECT_THAT(help, HasSubstr(chosen));
  };
  check(SchedulingPolicyNames(), "fcfs");
  check(AdmissionPolicyNames(), "vllm");
  check(ChunkPolicyNames(), "first_come");
}

TEST(SchedulerFlagsTest, WithoutATextThereIsNoFlag) {
  CLI::App app;
  SchedulerOptions options;
  AddSchedulerFlags(&app, {.max_num_seqs = "the only one"}, &options);
  AddPolicyFlags(&app, {.admission = "the other one"}, &options);
  const std::string help = app.help();
  EXPECT_THAT(help, HasSubstr("the only one"));
  EXPECT_THAT(help, HasSubstr("the other one"));
  EXPECT_THAT(help, Not(HasSubstr("--max-model-len")));
  EXPECT_THAT(help, Not(HasSubstr("prefix-caching")));
  EXPECT_THAT(help, Not(HasSubstr("--chunk-policy")));
  EXPECT_THROW(app.parse("--max-waiting 7"), CLI::ExtrasError);
}

}  // namespace
}  // namespace blockmgr
