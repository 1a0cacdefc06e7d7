#include "bench/options.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include "bench/sim.h"
#include "blockmgr/base/status_macros.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// What a command line means, or the parser's complaint.
absl::StatusOr<BenchOptions> ParseBench(absl::string_view line) {
  CLI::App app;
  BenchOptions options;
  AddBenchFlags(&app, &options);
  BM_RETURN_IF_ERROR(ParseFlags(&app, absl::StrSplit(line, ' ')));
  return options;
}

TEST(BenchFlagsTest, ParsesTheFlagsOfVllm) {
  ASSERT_OK_AND_ASSIGN(
      const BenchOptions options,
      ParseBench("--dataset-name random --num-prompts 7 --request-rate 2.5 "
                 "--burstiness 0.5 --max-concurrency 3 "
                 "--goodput ttft:200 tpot:50 --percentile-metrics ttft,e2el "
                 "--metric-percentiles 90,99.9 --metadata a=1 b=x=y --seed 9 "
                 "--label run"));
  ASSERT_OK_AND_ASSIGN(const BenchPlan plan, ResolveOptions(options));
  EXPECT_EQ(plan.workload.requests.size(), 7u);
  EXPECT_NEAR(plan.workload.requests.back().arrival_s, 2.8, 1e-9);
  EXPECT_EQ(plan.max_concurrency, 3);
  EXPECT_EQ(plan.goodput.tpot_ms, 50.0);
  EXPECT_THAT(plan.percentile_metrics, ElementsAre("ttft", "e2el"));
  EXPECT_THAT(plan.percentiles, ElementsAre(50, 90, 99, 99.9));
  EXPECT_THAT(plan.metadata, ElementsAre(Pair("a", "1"), Pair("b", "x=y")));
  EXPECT_EQ(plan.eviction.mode, EvictionMode::kNone);
}

TEST(BenchFlagsTest, AGoodputMayBeOneWord) {
  CLI::App app;
  BenchOptions options;
  AddBenchFlags(&app, &options);
  ASSERT_OK(ParseFlags(&app, {"--goodput", "ttft:200 tpot:50"}));
  ASSERT_OK_AND_ASSIGN(const BenchPlan plan, ResolveOptions(options));
  EXPECT_EQ(plan.goodput.ttft_ms, 200.0);
  EXPECT_EQ(plan.goodput.tpot_ms, 50.0);
}

TEST(BenchFlagsTest, RequestRateMayBeInfinite) {
  ASSERT_OK_AND_ASSIGN(const BenchOptions options,
                       ParseBench("--request-rate inf"));
  EXPECT_TRUE(std::isinf(*options.arrivals.request_rate));
}

TEST(BenchFlagsTest, UnknownFlagsAndValuesAreErrors) {
  EXPECT_FALSE(ParseBench("--ramp-up-strategy linear").ok());
  EXPECT_FALSE(ParseBench("--dataset-name sharegpt").ok());
  EXPECT_FALSE(ParseBench("--percentile-metrics ttft,fast").ok());
  EXPECT_FALSE(ParseBench("--metric-percentiles 101").ok());
  EXPECT_FALSE(ParseBench("--max-concurrency 0").ok());
}

TEST(BenchFlagsTest, IneffectiveOptionsAreErrors) {
  BenchOptions options;
  options.result_dir = "out";
  EXPECT_THAT(ResolveOptions(options), IsInvalid("result-dir"));
  options = {};
  options.save_detailed = true;
  EXPECT_THAT(ResolveOptions(options), IsInvalid("save-detailed"));
  options = {};
  options.metadata = {"novalue"};
  EXPECT_THAT(ResolveOptions(options), IsInvalid("got 'novalue'"));
}

absl::StatusOr<SchedulerOptions> ParseSim(absl::string_view line) {
  CLI::App app;
  SimOptions options;
  AddSimFlags(&app, &options);
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  BM_RETURN_IF_ERROR(ParseFlags(&app, std::move(words)));
  return options.scheduler;
}

TEST(SimFlagsTest, ChooseThePoliciesOfTheScheduler) {
  ASSERT_OK_AND_ASSIGN(
      const SchedulerOptions options,
      ParseSim("--scheduling-policy prefix --admission guaranteed "
               "--chunk-policy equal-progress --prefix-aging 5 "
               "--max-bypasses 6 --min-prefix-wait-tokens 7 "
               "--max-prefix-wait-steps 8 --max-long-prefills 9"));
  EXPECT_EQ(options.policy, SchedulingPolicy::kPrefix);
  EXPECT_EQ(options.admission, AdmissionPolicy::kGuaranteed);
  EXPECT_EQ(options.chunk_policy, ChunkPolicy::kEqualProgress);
  EXPECT_EQ(options.prefix_aging, 5);
  EXPECT_EQ(options.max_bypasses, 6);
  EXPECT_EQ(options.min_prefix_wait_tokens, 7);
  EXPECT_EQ(options.max_prefix_wait_steps, 8);
  EXPECT_EQ(options.max_long_prefills, 9);
  ASSERT_OK_AND_ASSIGN(
      const SchedulerOptions others,
      ParseSim("--scheduling-policy priority --admission max-utilization"));
  EXPECT_EQ(others.policy, SchedulingPolicy::kPriority);
  EXPECT_EQ(others.admission, AdmissionPolicy::kMaxUtilization);
}

TEST(SimFlagsTest, WithoutFlagsAreTheDefaults) {
  ASSERT_OK_AND_ASSIGN(const SchedulerOptions options, ParseSim(""));
  EXPECT_EQ(options.policy, SchedulingPolicy::kFcfs);
  EXPECT_EQ(options.admission, AdmissionPolicy::kWatermark);
  EXPECT_EQ(options.chunk_policy, ChunkPolicy::kFirstCome);
  EXPECT_EQ(options.max_bypasses, SchedulerOptions().max_bypasses);
}

TEST(SimFlagsTest, UnknownPoliciesAreErrors) {
  EXPECT_FALSE(ParseSim("--scheduling-policy lifo").ok());
  EXPECT_FALSE(ParseSim("--admission none").ok());
  EXPECT_FALSE(ParseSim("--chunk-policy random").ok());
}

}  // namespace
}  // namespace blockmgr
