#include "bench/sim.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/bench/small_sim.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

BenchOptions SmallLoad() {
  BenchOptions bench;
  bench.dataset.num_prompts = 120;
  bench.dataset.random = {.input_tokens = 600,
                          .output_tokens = 40,
                          .range_ratio = 0.5,
                          .prefix_tokens = 64};
  bench.arrivals.request_rate = 30.0;
  bench.seed = 3;
  return bench;
}

absl::StatusOr<RunResult> RunSmall(const BenchOptions& bench,
                                   const SimOptions& sim) {
  const absl::StatusOr<BenchPlan> plan = ResolveOptions(bench);
  if (!plan.ok()) return plan.status();
  return RunSim(sim, *plan, nullptr);
}

RunSummary SummaryOf(const RunResult& result) {
  const std::vector<double> percentiles = {50, 99};
  return Summarize(result.records, result.duration_s, {}, percentiles);
}

TEST(SimTest, EveryRequestGetsItsTokensAfterItArrived) {
  const BenchOptions bench = SmallLoad();
  ASSERT_OK_AND_ASSIGN(const BenchPlan plan, ResolveOptions(bench));
  ASSERT_OK_AND_ASSIGN(const RunResult result,
                       RunSim(SmallSim(), plan, nullptr));
  ASSERT_EQ(result.records.size(), 120u);
  double last_s = 0;
  for (size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    EXPECT_TRUE(record.completed) << record.failure;
    EXPECT_EQ(static_cast<int32_t>(record.tokens_s.size()),
              plan.workload.requests[i].output_tokens);
    EXPECT_EQ(*record.sent_s, record.intended_s);
    EXPECT_GT(record.tokens_s.front(), record.intended_s);
    EXPECT_TRUE(std::is_sorted(record.tokens_s.begin(), record.tokens_s.end()));
    last_s = std::max(last_s, record.tokens_s.back());
  }
  EXPECT_EQ(result.duration_s, last_s);
  EXPECT_GT(result.counters->scheduler.num_cached_tokens, 0u);
  EXPECT_LE(result.peaks->max_used_blocks, 399);
}

// Steps of few sequences are bound by memory: verifying drafts costs nothing.
TEST(SimTest, DraftsSaveStepsAndTime) {
  BenchOptions bench = SmallLoad();
  bench.dataset.num_prompts = 20;
  bench.arrivals.request_rate = 2.0;
  ASSERT_OK_AND_ASSIGN(const RunResult plain, RunSmall(bench, SmallSim()));
  SimOptions sim = SmallSim();
  sim.scheduler.num_speculative_tokens = 4;
  sim.model.num_drafts = 4;
  sim.model.draft_acceptance = 0.8;
  ASSERT_OK_AND_ASSIGN(const RunResult drafts, RunSmall(bench, sim));
  EXPECT_EQ(plain.counters->scheduler.num_draft_tokens, 0u);
  EXPECT_GT(drafts.counters->scheduler.num_draft_tokens, 0u);
  // 0.8 + 0.8^2 + 0.8^3 + 0.8^4 of four.
  EXPECT_NEAR(
      static_cast<double>(drafts.counters->scheduler.num_accepted_tokens) /
          static_cast<double>(drafts.counters->scheduler.num_draft_tokens),
      0.59, 0.06);
  EXPECT_LT(drafts.counters->scheduler.num_steps,
            plain.counters->scheduler.num_steps / 2);
  const RunSummary before = SummaryOf(plain);
  const RunSummary after = SummaryOf(drafts);
  EXPECT_EQ(after.completed, 20);
  EXPECT_EQ(after.total_output_tokens, before.total_output_tokens);
  EXPECT_LT(after.latencies_ms.at("tpot").mean,
            before.latencies_ms.at("tpot").mean / 2);
}

// Requests that hold blocks are a part of those sent and unfinished (Little's
// law gives the mean of the latter).
TEST(SimTest, MeanInFlightIsBoundedByLittlesLaw) {
  ASSERT_OK_AND_ASSIGN(const RunResult result,
                       RunSmall(SmallLoad(), SmallSim()));
  double latency_sum_s = 0;
  double service_sum_s = 0;
  for (const RequestRecord& record : result.records) {
    latency_sum_s += E2el(record);
    service_sum_s += record.tokens_s.back() - record.tokens_s.front();
  }
  EXPECT_LE(result.counters->mean_requests_in_flight,
            latency_sum_s / result.duration_s + 1e-9);
  // A preempted request may wait between two of its tokens.
  if (result.counters->scheduler.num_preemptions == 0) {
    EXPECT_GE(result.counters->mean_requests_in_flight,
              service_sum_s / result.duration_s - 1e-9);
  }
  EXPECT_GE(result.peaks->max_requests_in_flight,
            result.counters->mean_requests_in_flight);
}

TEST(SimTest, TwoRunsGiveIdenticalReports) {
  BenchOptions bench = SmallLoad();
  bench.eviction.keep_ratio = "0.25";
  bench.save_detailed = true;
  bench.json = true;
  const auto report = [&]() -> absl::StatusOr<std::string> {
    absl::StatusOr<BenchPlan> plan = ResolveOptions(bench);
    if (!plan.ok()) return plan.status();
    absl::StatusOr<RunResult> result = RunSim(SmallSim(), *plan, nullptr);
    if (!result.ok()) return result.status();
    return BuildReport(bench, *plan, *result, std::nullopt).dump();
  };
  ASSERT_OK_AND_ASSIGN(const std::string first, report());
  ASSERT_OK_AND_ASSIGN(const std::string second, report());
  EXPECT_EQ(first, second);
}

TEST(SimTest, EvictionFreesBlocksAndKeepsTheOutputLengths) {
  BenchOptions bench = SmallLoad();
  ASSERT_OK_AND_ASSIGN(const RunResult full, RunSmall(bench, SmallSim()));
  bench.eviction.keep_ratio = "0.2";
  ASSERT_OK_AND_ASSIGN(const RunResult kept, RunSmall(bench, SmallSim()));
  EXPECT_EQ(full.counters->scheduler.num_evictions, 0u);
  EXPECT_EQ(full.counters->scheduler.kept_entries_max, 0);
  EXPECT_GE(kept.counters->scheduler.num_evictions, 120u);
  EXPECT_GT(kept.counters->scheduler.evicted_bytes, 0);
  EXPECT_GT(kept.counters->scheduler.kept_entries_max,
            kept.counters->scheduler.kept_entries_median);
  for (size_t i = 0; i < full.records.size(); ++i) {
    EXPECT_EQ(full.records[i].tokens_s.size(), kept.records[i].tokens_s.size());
  }
}

TEST(SimTest, ConcurrencyLimitHoldsSendsBackAndShowsAsLag) {
  BenchOptions bench = SmallLoad();
  bench.arrivals.request_rate = std::nullopt;  // all at once
  bench.max_concurrency = 4;
  ASSERT_OK_AND_ASSIGN(const RunResult result, RunSmall(bench, SmallSim()));
  const RunSummary summary = SummaryOf(result);
  EXPECT_EQ(summary.completed, 120);
  EXPECT_EQ(summary.max_concurrent_requests, 4);
  EXPECT_GT(summary.client_lag_ms.max, 0);
  // Coordinated omission: the wait is part of the latency.
  const RequestRecord& last = result.records.back();
  EXPECT_GE(Ttft(last), *last.sent_s - last.intended_s);
}

TEST(SimTest, ImpossibleRequestsFailAloneAndAreCounted) {
  BenchOptions bench = SmallLoad();
  bench.dataset.random.input_tokens = 6000;  // 3000 to 9000, of 6384 that fit
  bench.dataset.num_prompts = 30;
  ASSERT_OK_AND_ASSIGN(const RunResult result, RunSmall(bench, SmallSim()));
  const RunSummary summary = SummaryOf(result);
  EXPECT_GT(summary.completed, 0);
  EXPECT_GT(summary.failed, 0);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").count, summary.failed);
}

TEST(SimTest, SmallPoolPreemptsAndStillCompletes) {
  BenchOptions bench = SmallLoad();
  bench.arrivals.request_rate = std::nullopt;
  bench.dataset.random.output_tokens = 300;
  SimOptions sim = SmallSim();
  sim.num_blocks = 120;
  sim.scheduler.watermark = 0;
  ASSERT_OK_AND_ASSIGN(const RunResult result, RunSmall(bench, sim));
  EXPECT_GT(result.counters->scheduler.num_preemptions, 0u);
  EXPECT_GT(result.counters->scheduler.num_recomputed_tokens, 0u);
  EXPECT_EQ(result.counters->scheduler.num_swap_ins, 0u);
  for (const RequestRecord& record : result.records) {
    EXPECT_TRUE(record.completed) << record.failure;
  }

  // With room in host memory nothing is computed twice, which takes longer
  // than the copies.
  sim.scheduler.engine.num_host_blocks = 1000;
  ASSERT_OK_AND_ASSIGN(const RunResult swapped, RunSmall(bench, sim));
  EXPECT_GT(swapped.counters->scheduler.num_swap_ins, 0u);
  EXPECT_EQ(swapped.counters->scheduler.num_recomputed_tokens, 0u);
  EXPECT_GT(swapped.counters->scheduler.num_swapped_in_tokens, 0u);
  for (const RequestRecord& record : swapped.records) {
    EXPECT_TRUE(record.completed) << record.failure;
  }
}

// What takes memory or time is requests and tokens, not seconds.
TEST(SimTest, VirtualTimeMayBeLong) {
  BenchOptions bench = SmallLoad();
  bench.arrivals.request_rate = 120.0 / 3e7;  // a year, nearly
  ASSERT_OK_AND_ASSIGN(const RunResult idle, RunSmall(bench, SmallSim()));
  RunSummary summary = SummaryOf(idle);
  EXPECT_EQ(summary.completed, 120);
  EXPECT_GT(summary.duration_s, 2.9e7);
  EXPECT_LT(summary.latencies_ms.at("ttft").max, 1e4);

  SimOptions slow = SmallSim();
  slow.model.flops = 1;
  ASSERT_OK_AND_ASSIGN(const RunResult busy, RunSmall(bench, slow));
  summary = SummaryOf(busy);
  EXPECT_EQ(summary.completed, 120);
  // 2 FLOP for each parameter and computed token, at least.
  EXPECT_GT(
      summary.duration_s,
      2e8 * static_cast<double>(busy.counters->scheduler.num_computed_tokens));
}

TEST(SimTest, PromptsThatCannotFitFail) {
  BenchOptions bench = SmallLoad();
  bench.dataset.num_prompts = 3;
  bench.dataset.random.input_tokens = 1 << 20;
  ASSERT_OK_AND_ASSIGN(const RunResult result, RunSmall(bench, SmallSim()));
  EXPECT_THAT(result.records.front().failure,
              IsInvalid("at most 131072 (max_model_len), got "));
}

TEST(SimTest, BadModelAndOptionsAreNamed) {
  SimOptions sim = SmallSim();
  sim.num_blocks = 0;
  EXPECT_THAT(RunSmall(SmallLoad(), sim), IsInvalid("num_blocks"));
  sim = SmallSim();
  sim.scheduler.max_steps_in_flight = 0;
  EXPECT_THAT(RunSmall(SmallLoad(), sim), IsInvalid("max_steps_in_flight"));
  BenchOptions bench = SmallLoad();
  bench.eviction.policy = "keydiff | lukv(profile=llama)";
  bench.eviction.keep_ratio = "0.2";
  EXPECT_THAT(RunSmall(bench, SmallSim()),
              IsInvalid("eviction: expected a policy without"));
}

}  // namespace
}  // namespace blockmgr
