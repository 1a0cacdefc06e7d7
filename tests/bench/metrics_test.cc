#include "bench/metrics.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

RequestRecord Completed(double intended_s, double sent_s,
                        std::vector<double> tokens_s, int32_t prompt_tokens) {
  RequestRecord record;
  record.intended_s = intended_s;
  record.sent_s = sent_s;
  record.tokens_s = std::move(tokens_s);
  record.prompt_tokens = prompt_tokens;
  record.completed = true;
  return record;
}

RequestRecord Failed(absl::Status status) {
  RequestRecord record;
  record.sent_s = 0.0;
  record.failure = std::move(status);
  return record;
}

// NumPy's default, "linear": rank q / 100 * (n - 1), worked out by hand.
TEST(PercentileTest, InterpolatesLinearly) {
  const std::vector<double> values = {1.5, 2.0, 3.25, 7.0, 10.0};
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1.5);
  EXPECT_DOUBLE_EQ(Percentile(values, 10), 1.7);   // rank 0.4
  EXPECT_DOUBLE_EQ(Percentile(values, 25), 2.0);   // rank 1
  EXPECT_DOUBLE_EQ(Percentile(values, 50), 3.25);  // rank 2
  EXPECT_DOUBLE_EQ(Percentile(values, 90), 8.8);   // rank 3.6
  EXPECT_DOUBLE_EQ(Percentile(values, 99), 9.88);  // rank 3.96
  EXPECT_DOUBLE_EQ(Percentile(values, 100), 10.0);
  const std::vector<double> even = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(Percentile(even, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile(even, 95), 3.85);
}

TEST(PercentileTest, OneValueAndNone) {
  EXPECT_EQ(Percentile(std::vector<double>{4}, 99), 4.0);
  EXPECT_EQ(Percentile({}, 50), 0.0);
}

TEST(DistributionTest, DeviationIsThatOfThePopulation) {
  const std::vector<double> percentiles = {50, 75};
  const Distribution result = Distribution::Of({4, 2, 1, 3}, percentiles);
  EXPECT_DOUBLE_EQ(result.mean, 2.5);
  EXPECT_DOUBLE_EQ(result.median, 2.5);
  EXPECT_DOUBLE_EQ(result.std, std::sqrt(1.25));
  EXPECT_EQ(result.max, 4.0);
  EXPECT_DOUBLE_EQ(result.percentiles.at(75), 3.25);
}

TEST(RecordTest, LatenciesCountFromTheIntendedSendTime) {
  const RequestRecord record = Completed(1.0, 3.0, {4.0, 4.5, 5.5}, 10);
  EXPECT_DOUBLE_EQ(Ttft(record), 3.0);
  EXPECT_DOUBLE_EQ(E2el(record), 4.5);
  EXPECT_DOUBLE_EQ(Tpot(record), 0.75);
  EXPECT_THAT(Itls(record),
              ElementsAre(DoubleNear(0.5, 1e-12), DoubleNear(1.0, 1e-12)));
}

TEST(RecordTest, TokensOfOneMessageHaveNoGap) {
  EXPECT_THAT(Itls(Completed(0, 0, {1, 1, 1, 3}, 1)), ElementsAre(2.0));
}

TEST(GoodputTest, ParsesLimits) {
  ASSERT_OK_AND_ASSIGN(const Goodput goodput,
                       Goodput::Parse(" ttft:200  tpot:50.5 e2el:5000"));
  EXPECT_EQ(goodput.ttft_ms, 200.0);
  EXPECT_EQ(goodput.tpot_ms, 50.5);
  EXPECT_EQ(goodput.e2el_ms, 5000.0);
  ASSERT_OK_AND_ASSIGN(const Goodput none, Goodput::Parse(""));
  EXPECT_FALSE(none.any());
}

TEST(GoodputTest, RejectsUnknownKeysBadValuesAndRepeats) {
  EXPECT_THAT(Goodput::Parse("itl:5"), IsInvalid("got 'itl'"));
  EXPECT_THAT(Goodput::Parse("ttft"), IsInvalid("ttft: expected milliseconds"));
  EXPECT_THAT(Goodput::Parse("ttft:fast"), IsInvalid("got 'fast'"));
  EXPECT_THAT(Goodput::Parse("ttft:-1"), IsInvalid("got '-1'"));
  EXPECT_THAT(Goodput::Parse("ttft:1 ttft:2"), IsInvalid("given twice"));
}

TEST(WithDefaultPercentilesTest, Adds50And99Once) {
  EXPECT_THAT(WithDefaultPercentiles({99.9, 50, 90}),
              ElementsAre(50, 90, 99, 99.9));
}

TEST(SummarizeTest, AddsUpCompletedRequests) {
  const std::vector<RequestRecord> records = {
      Completed(0.0, 0.5, {1.0, 1.5, 2.0}, 100),
      Completed(1.0, 1.0, {3.0}, 50),
      Failed(absl::ResourceExhaustedError("queue full")),
      Failed(absl::ResourceExhaustedError("queue still full")),
  };
  const std::vector<double> percentiles = {50, 99};
  const RunSummary summary = Summarize(records, 4.0, {}, percentiles);
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 2);
  ASSERT_EQ(summary.failures.size(), 1u);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").count, 2);
  EXPECT_EQ(summary.failures.at("RESOURCE_EXHAUSTED").example, "queue full");
  EXPECT_EQ(summary.total_input_tokens, 150);
  EXPECT_EQ(summary.total_output_tokens, 4);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 0.5);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 1.0);
  EXPECT_DOUBLE_EQ(summary.total_token_throughput, 38.5);
  EXPECT_FALSE(summary.request_goodput.has_value());
  EXPECT_DOUBLE_EQ(summary.latencies_ms.at("ttft").mean, 1500);
  EXPECT_DOUBLE_EQ(summary.latencies_ms.at("e2el").mean, 2000);
  // The request with one token has no time per output token.
  EXPECT_DOUBLE_EQ(summary.latencies_ms.at("tpot").mean, 500);
  EXPECT_DOUBLE_EQ(summary.latencies_ms.at("tpot").std, 0);
  // Tokens at 1.0, 1.5 | 2.0 | 3.0: the second second has most.
  EXPECT_DOUBLE_EQ(summary.max_output_tokens_per_s, 2);
  EXPECT_EQ(summary.max_concurrent_requests, 2);
  // Four sends, the last one at 1 s; lags 500, 0, 0, 0 ms.
  EXPECT_DOUBLE_EQ(*summary.achieved_request_rate, 4);
  EXPECT_DOUBLE_EQ(summary.client_lag_ms.mean, 125);
  EXPECT_DOUBLE_EQ(summary.client_lag_ms.max, 500);
}

// Of a length in seconds that no table has.
TEST(SummarizeTest, ARunMayLastForAges) {
  const std::vector<RequestRecord> records = {
      Completed(0, 0, {1e20, 1e20, 2e20}, 1), Completed(0, 0, {1e-9}, 1)};
  const std::vector<double> percentiles = {50, 99};
  const RunSummary summary = Summarize(records, 2e20, {}, percentiles);
  EXPECT_EQ(summary.max_output_tokens_per_s, 2);
  EXPECT_EQ(summary.latencies_ms.at("ttft").max, 1e23);
}

TEST(SummarizeTest, GoodputCountsRequestsThatMeetEveryLimit) {
  const std::vector<RequestRecord> records = {
      Completed(0, 0, {0.1, 0.2, 0.3}, 1),  // ttft 100, tpot 100, e2el 300
      Completed(0, 0, {0.1, 0.4, 0.7}, 1),  // ttft 100, tpot 300, e2el 700
      Completed(0, 0, {0.1}, 1),            // ttft 100, no tpot
      Completed(0, 0, {0.9}, 1),            // ttft 900
  };
  const Goodput goodput{.ttft_ms = 100.0, .tpot_ms = 200.0};
  const std::vector<double> percentiles = {50};
  const RunSummary summary = Summarize(records, 2.0, goodput, percentiles);
  EXPECT_DOUBLE_EQ(*summary.request_goodput, 1.0);
  EXPECT_EQ(summary.good, 2);
  EXPECT_FALSE(Summarize(records, 2.0, {}, percentiles).good.has_value());
}

TEST(SummarizeTest, OneRequestEndsAsAnotherStarts) {
  const std::vector<RequestRecord> records = {Completed(0, 0, {1}, 1),
                                              Completed(1, 1, {2}, 1)};
  EXPECT_EQ(Summarize(records, 2, {}, {}).max_concurrent_requests, 1);
}

TEST(SummarizeTest, NothingCompletedGivesZeros) {
  const std::vector<RequestRecord> records = {
      Failed(absl::UnavailableError("gone"))};
  const std::vector<double> percentiles = {50, 99};
  const RunSummary summary = Summarize(records, 0, {}, percentiles);
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.request_throughput, 0.0);
  EXPECT_EQ(summary.latencies_ms.at("ttft").percentiles.at(99), 0.0);
  EXPECT_FALSE(summary.achieved_request_rate.has_value());
}

}  // namespace
}  // namespace blockmgr
