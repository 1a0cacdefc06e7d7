// What the core measures of requests and steps.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/server/core.h"
#include "scheduler/server/request_metrics.h"
#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

// What a histogram with these durations alone would have.
DurationHistogram Durations(const std::vector<double>& seconds) {
  DurationHistogram histogram;
  for (const double duration : seconds) histogram.Observe(duration);
  return histogram;
}

void ExpectDurations(const DurationHistogram& got,
                     const std::vector<double>& seconds) {
  EXPECT_EQ(got.counts, Durations(seconds).counts);
  EXPECT_DOUBLE_EQ(got.sum_seconds, Durations(seconds).sum_seconds);
}

TEST_F(CoreTest, MeasuresHowLongRequestsTake) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  now_ = 200;
  ASSERT_OK(Submit("a", "r", 3));  // its first step is issued at once
  now_ = 200.25;
  Answer(engine, 0);  // the first token, and the second step
  now_ = 201;
  Answer(engine, 1);
  now_ = 203.25;
  Answer(engine, 2);  // the end
  const RequestMetrics metrics = Stats(false).requests;
  ExpectDurations(metrics.queue, {0});
  ExpectDurations(metrics.first_token, {0.25});
  ExpectDurations(metrics.output_token, {1.5});
  ExpectDurations(metrics.request, {3.25});
  ExpectDurations(metrics.step, {0.25, 0.75, 2.25});
}

TEST_F(CoreTest, ARequestIsInTheQueueUntilItsFirstStep) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  now_ = 200;
  ASSERT_OK(Submit("a", "r", 1));
  ASSERT_OK(Submit("a", "s", 1));
  now_ = 210;
  ASSERT_OK(Submit("a", "late", 1));  // both steps are out
  now_ = 214;
  Answer(engine, 0);
  ExpectDurations(Stats(false).requests.queue, {0, 0, 4});
}

TEST_F(CoreTest, TimesAreOfRequestsThatWereNotCutShort) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "one", 1));
  now_ += 5;
  Answer(engine, 0);
  ASSERT_OK(Submit("a", "cancelled", 9));
  now_ += 7;
  Answer(engine, 1);
  ASSERT_OK(Cancel("cancelled"));
  const RequestMetrics metrics = Stats(false).requests;
  ExpectDurations(metrics.first_token, {5, 7});
  ExpectDurations(metrics.request, {5});
  ExpectDurations(metrics.output_token, {});  // a single token has no rate
  const auto ended = [&metrics](FinishReason reason) {
    return metrics.finished[static_cast<size_t>(reason)];
  };
  EXPECT_EQ(ended(FinishReason::kLength), 1u);
  EXPECT_EQ(ended(FinishReason::kCancelled), 1u);
  EXPECT_EQ(ended(FinishReason::kStop), 0u);
}

TEST_F(CoreTest, StepsOfAnEngineThatIsGoneAreNotMeasured) {
  auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  now_ += 100;
  Run(EngineLost{engine});
  engine = AttachAndOpen();
  now_ += 0.5;
  Answer(engine, 0);
  ExpectDurations(Stats(false).requests.step, {0.5});
}

TEST_F(CoreTest, CountsRefusedSubmissionsByCode) {
  const auto refused = [this](absl::StatusCode code) {
    return Stats(false).requests.refused[static_cast<size_t>(code)];
  };
  EXPECT_FALSE(Submit("a", "r", 1).ok());
  EXPECT_EQ(refused(absl::StatusCode::kUnavailable), 1u);
  const auto engine = AttachAndOpen();
  EXPECT_FALSE(Submit("a", "r", 1).ok());
  EXPECT_FALSE(Submit("a", "s", 1).ok());
  EXPECT_EQ(refused(absl::StatusCode::kFailedPrecondition), 2u);
  const auto tokens = OpenStream("a");
  EXPECT_OK(Submit("a", "r", 1));
  EXPECT_EQ(refused(absl::StatusCode::kOk), 0u);
  EXPECT_EQ(refused(absl::StatusCode::kUnavailable), 1u);
}

}  // namespace
}  // namespace blockmgr
