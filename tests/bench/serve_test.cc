// The load client against a scripted daemon on a real socket.
#include "bench/serve/serve.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/fake_daemon.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

class ServeTest : public FakeDaemonTest {
 protected:
  absl::StatusOr<RunResult> Run(const BenchOptions& bench) {
    const absl::StatusOr<BenchPlan> plan = ResolveOptions(bench);
    if (!plan.ok()) return plan.status();
    return RunServe(Options(), *plan, nullptr);
  }

  ServeOptions Options() const {
    return {.address = address_,
            .ready_check_timeout_s = ready_timeout_s_,
            .keep_prefix_cache = keep_prefix_cache_};
  }

  static BenchOptions Load(int64_t num_prompts) {
    BenchOptions bench;
    bench.dataset.num_prompts = num_prompts;
    bench.dataset.random.input_tokens = 20;
    bench.dataset.random.output_tokens = 3;
    return bench;
  }

  static RunSummary Summary(const RunResult& result) {
    return Summarize(result.records, result.duration_s, {}, {});
  }

  double ready_timeout_s_ = 20;
  bool keep_prefix_cache_ = false;
};

TEST_F(ServeTest, RecordsEveryTokenOfEveryRequest) {
  StartDaemon({});
  BenchOptions bench = Load(50);
  bench.arrivals.request_rate = 500.0;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  ASSERT_EQ(result.records.size(), 50u);
  for (const RequestRecord& record : result.records) {
    EXPECT_TRUE(record.completed) << record.failure;
    EXPECT_EQ(record.tokens_s.size(), 3u);
    EXPECT_GE(*record.sent_s, record.intended_s);
    EXPECT_LE(record.tokens_s.back(), result.duration_s);
  }
  EXPECT_EQ(result.model_id, "fake");
  EXPECT_TRUE(daemon_->peaks_reset());
}

TEST_F(ServeTest, CountersAreDifferencesOfTheDaemonsStats) {
  StartDaemon({});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(3)));
  ASSERT_TRUE(result.counters.has_value());
  EXPECT_DOUBLE_EQ(result.counters->mean_requests_in_flight, 2.5);
  EXPECT_EQ(result.counters->scheduler.num_preemptions, 1u);
  EXPECT_EQ(result.counters->scheduler.num_steps, 0u);
  ASSERT_TRUE(result.peaks.has_value());
  EXPECT_EQ(result.peaks->max_requests_in_flight, 6);
  EXPECT_THAT(result.notes, IsEmpty());
}

TEST_F(ServeTest, CountersThatBeganAgainAreNotKnown) {
  struct Case {
    FakeDaemon::Script script;
    const char* why;
  };
  for (const Case& c :
       {Case{{.restarts = true}, "the daemon was started again"},
        Case{{.changes_geometry = true}, "an engine of another geometry"},
        Case{{.dies = true}, "did not answer at the end: gone for good"}}) {
    StartDaemon(c.script);
    ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(3)));
    EXPECT_FALSE(result.counters.has_value()) << c.why;
    EXPECT_FALSE(result.peaks.has_value()) << c.why;
    EXPECT_THAT(result.notes, ElementsAre(HasSubstr(c.why)));
    EXPECT_EQ(Summary(result).completed, 3);
    StopDaemon();
  }
}

TEST_F(ServeTest, PeaksThatOthersResetAreNotKnown) {
  StartDaemon({.others_reset_peaks = true});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(3)));
  EXPECT_TRUE(result.counters.has_value());
  EXPECT_FALSE(result.peaks.has_value());
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("another client has reset")));
}

TEST_F(ServeTest, ThePrefixCacheIsResetUnlessItIsKept) {
  StartDaemon({});
  ASSERT_OK_AND_ASSIGN(const RunResult reset, Run(Load(1)));
  EXPECT_EQ(reset.prefix_cache, "reset");
  EXPECT_EQ(daemon_->cache_resets(), 1);
  keep_prefix_cache_ = true;
  ASSERT_OK_AND_ASSIGN(const RunResult kept, Run(Load(1)));
  EXPECT_EQ(kept.prefix_cache, "kept");
  EXPECT_EQ(daemon_->cache_resets(), 1);
}

TEST_F(ServeTest, OtherClientsAreNoted) {
  StartDaemon({.others_running = 4, .in_use_blocks = 9});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(1)));
  EXPECT_THAT(result.notes,
              ElementsAre(HasSubstr("9 blocks of the prefix cache were not"),
                          HasSubstr("4 requests running")));
}

TEST_F(ServeTest, RequestsThatOthersEndedDuringTheRunAreNoted) {
  StartDaemon({.num_ended = 8});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(8)));
  EXPECT_THAT(result.notes, IsEmpty());
  StopDaemon();
  StartDaemon({.num_ended = 8});
  ASSERT_OK_AND_ASSIGN(const RunResult shared, Run(Load(1)));
  EXPECT_THAT(shared.notes,
              ElementsAre(HasSubstr("at least 7 requests of other clients")));
}

TEST_F(ServeTest, NothingIsMeasuredWithoutTheResetAskedFor) {
  StartDaemon({.refuses_reset = true});
  EXPECT_THAT(Run(Load(1)), StatusIs(absl::StatusCode::kResourceExhausted,
                                     AllOf(HasSubstr("--keep-prefix-cache"),
                                           HasSubstr("too many commands"))));
  EXPECT_TRUE(daemon_->requests().empty());
  keep_prefix_cache_ = true;
  EXPECT_OK(Run(Load(1)));
}

TEST_F(ServeTest, SendsPromptsLimitsAndEviction) {
  StartDaemon({});
  BenchOptions bench = Load(2);
  bench.eviction.keep_ratio = "0.2";
  ASSERT_OK_AND_ASSIGN(const BenchPlan plan, ResolveOptions(bench));
  EXPECT_OK(RunServe(Options(), plan, nullptr));
  const std::vector<v1::SubmitRequest> requests = daemon_->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_NE(requests[0].request_id(), requests[1].request_id());
  for (const v1::SubmitRequest& request : requests) {
    EXPECT_EQ(request.max_tokens(), 3);
    EXPECT_EQ(request.eviction().mode(), v1::EVICTION_MODE_AFTER_PREFILL);
    EXPECT_TRUE(request.eviction().policy().has_adakv());
    EXPECT_EQ(request.eviction().target().keep_ratio(), "0.2");
    EXPECT_EQ(request.prompt_token_ids_size(), 20);
    EXPECT_TRUE(request.sampling().ignore_eos());
    EXPECT_TRUE(request.sampling().has_temperature());
    EXPECT_EQ(request.sampling().temperature(), 0);
  }
  const std::vector<int32_t> expected =
      SynthesizeTokens(plan.workload.requests[0].prompt, plan.vocab_size);
  const auto& first =
      requests[0].request_id().ends_with("/0") ? requests[0] : requests[1];
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                         first.prompt_token_ids().begin()));
}

TEST_F(ServeTest, RefusedRequestsAreCountedWithTheirReason) {
  StartDaemon({.refused_prompt_tokens = 20});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(4)));
  const RunSummary summary = Summary(result);
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").count, 4);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").example, "queue full");
}

TEST_F(ServeTest, ABrokenStreamFailsWhatIsUnfinishedAndUnsent) {
  StartDaemon({.submissions_before_break = 5});
  BenchOptions bench = Load(12);
  bench.max_concurrency = 1;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  const RunSummary summary = Summary(result);
  EXPECT_EQ(summary.completed, 5);
  EXPECT_EQ(summary.failures.at("UNAVAILABLE").count, 7);
  EXPECT_FALSE(result.records.back().sent_s.has_value());
}

TEST_F(ServeTest, LostTokensAreAFailure) {
  StartDaemon({.loses_tokens = true});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(2)));
  EXPECT_EQ(Summary(result).failures.at("DATA_LOSS").count, 2);
}

TEST_F(ServeTest, RequestsTheDaemonFailsCarryItsMessage) {
  StartDaemon({.finish = v1::FINISH_REASON_FAILED});
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(Load(1)));
  EXPECT_EQ(Summary(result).failures.at("UNKNOWN").example,
            "broken on purpose");
}

TEST_F(ServeTest, ConcurrencyLimitIsKept) {
  StartDaemon({});
  BenchOptions bench = Load(40);
  bench.max_concurrency = 3;
  ASSERT_OK_AND_ASSIGN(const RunResult result, Run(bench));
  EXPECT_EQ(Summary(result).completed, 40);
  EXPECT_THAT(Summary(result).max_concurrent_requests, AllOf(Ge(1), Le(3)));
}

TEST_F(ServeTest, WaitsForAnEngineNoLongerThanAsked) {
  StartDaemon({.engine_attached = false});
  ready_timeout_s_ = 0.3;
  EXPECT_THAT(Run(Load(1)), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     HasSubstr("no engine")));
}

TEST_F(ServeTest, SaysWhereNoDaemonAnswers) {
  ready_timeout_s_ = 0.3;
  EXPECT_THAT(Run(Load(1)), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr(address_),
                                           HasSubstr("no daemon answers"))));
}

}  // namespace
}  // namespace blockmgr
