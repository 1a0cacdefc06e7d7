#include "bench/rate_search.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// A server whose goal holds up to `limit` requests/s, of which it does
// `throughput` when all come at once.
TrialRun Server(double limit, double throughput, int* num_runs = nullptr) {
  return [=](double rate) -> absl::StatusOr<RateTrial> {
    if (num_runs != nullptr) ++*num_runs;
    return RateTrial{.rate = rate,
                     .num_requests = 1000,
                     .good = rate <= limit ? 990 : 989,
                     .throughput = std::min(rate, throughput)};
  };
}

TEST(RoundRateTest, KeepsThreeDigits) {
  EXPECT_EQ(RoundRate(0.43749), 0.437);
  EXPECT_EQ(RoundRate(12345), 12300.0);
  EXPECT_EQ(RoundRate(0.9999), 1.0);
  EXPECT_EQ(RoundRate(2.5e-7), 2.5e-7);
}

TEST(FindMaxRateTest, EndsWithinTheResolutionOfTheLimit) {
  for (const double limit : {0.00731, 0.3, 0.437, 1.0, 42.5, 99999.0}) {
    for (const double factor : {0.01, 0.9, 1.0, 3.0, 500.0}) {
      int num_runs = 0;
      ASSERT_OK_AND_ASSIGN(
          const RateSearch found,
          FindMaxRate(99, Server(limit, limit * factor, &num_runs)));
      EXPECT_LE(found.max_rate, limit);
      ASSERT_TRUE(found.failing_rate.has_value());
      EXPECT_GT(*found.failing_rate, limit);
      EXPECT_LE(*found.failing_rate, found.max_rate * 1.02 + 1e-12);
      EXPECT_LE(num_runs, 20) << limit << " " << factor;
      EXPECT_EQ(static_cast<int>(found.trials.size()), num_runs);
      EXPECT_EQ(found.trials.front().rate, HUGE_VAL);
      for (const RateTrial& trial : found.trials) {
        if (std::isinf(trial.rate)) continue;
        EXPECT_EQ(trial.rate, RoundRate(trial.rate));
      }
    }
  }
}

TEST(FindMaxRateTest, AGoalThatHoldsWithAllAtOnceHasNoHighestRate) {
  ASSERT_OK_AND_ASSIGN(const RateSearch found,
                       FindMaxRate(99, Server(HUGE_VAL, 5)));
  EXPECT_EQ(found.max_rate, HUGE_VAL);
  EXPECT_FALSE(found.failing_rate.has_value());
  EXPECT_EQ(found.trials.size(), 1u);
}

TEST(FindMaxRateTest, AGoalThatFailsOnlyAtOnceEndsToo) {
  const double most = std::numeric_limits<double>::max();
  ASSERT_OK_AND_ASSIGN(const RateSearch found,
                       FindMaxRate(99, Server(most, 5)));
  EXPECT_GT(found.max_rate, 1e6);
  EXPECT_EQ(*found.failing_rate, HUGE_VAL);
}

TEST(FindMaxRateTest, AGoalThatNeverHoldsIsAnError) {
  EXPECT_THAT(FindMaxRate(99, Server(0, 5)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("got 98.9 %")));
  EXPECT_THAT(FindMaxRate(99, Server(0, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no request completed")));
}

TEST(FindMaxRateTest, AnErrorOfARunIsThatOfTheSearch) {
  const TrialRun run = [](double rate) -> absl::StatusOr<RateTrial> {
    if (std::isinf(rate)) return RateTrial{rate, 10, 0, 1};
    return absl::InvalidArgumentError("no such trace");
  };
  EXPECT_THAT(FindMaxRate(99, run), IsInvalid("no such trace"));
}

}  // namespace
}  // namespace blockmgr
