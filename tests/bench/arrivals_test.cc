#include "bench/arrivals.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Moments {
  double mean = 0;
  double squared_variation = 0;  // variance / mean^2
};

Moments GapMoments(const std::vector<double>& times) {
  double sum = 0;
  double squares = 0;
  double before = 0;
  for (const double time : times) {
    sum += time - before;
    squares += (time - before) * (time - before);
    before = time;
  }
  const auto n = static_cast<double>(times.size());
  const double mean = sum / n;
  return {mean, (squares / n - mean * mean) / (mean * mean)};
}

TEST(ArrivalTimesTest, LastArrivalIsAtCountOverRate) {
  for (const double burstiness : {0.1, 1.0, 7.0, kInfinity}) {
    const auto times = ArrivalTimes(500, 20, burstiness, 3);
    EXPECT_NEAR(times.back(), 25.0, 1e-9) << burstiness;
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  }
}

// Gamma with shape k has squared coefficient of variation 1 / k.
TEST(ArrivalTimesTest, GapsHaveTheMomentsOfTheGammaDistribution) {
  for (const double burstiness : {0.5, 1.0, 4.0}) {
    const Moments moments =
        GapMoments(ArrivalTimes(200000, 50, burstiness, 11));
    EXPECT_NEAR(moments.mean, 0.02, 1e-9);
    EXPECT_NEAR(moments.squared_variation * burstiness, 1.0, 0.03)
        << burstiness;
  }
}

TEST(ArrivalTimesTest, InfiniteBurstinessIsAConstantGap) {
  const auto times = ArrivalTimes(10, 5, kInfinity, 0);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_NEAR(times[i], 0.2 * static_cast<double>(i + 1), 1e-12);
  }
}

TEST(ArrivalTimesTest, InfiniteRateSendsAllAtOnce) {
  EXPECT_THAT(ArrivalTimes(10, kInfinity, 1, 0), Each(0.0));
}

TEST(ArrivalTimesTest, SeedDecides) {
  EXPECT_EQ(ArrivalTimes(100, 5, 1, 8), ArrivalTimes(100, 5, 1, 8));
  EXPECT_NE(ArrivalTimes(100, 5, 1, 8), ArrivalTimes(100, 5, 1, 9));
}

TEST(ArrivalTimesTest, VanishingShapesStayFinite) {
  const auto times = ArrivalTimes(5, 10, 1e-300, 1);
  EXPECT_EQ(times.back(), 0.5);
  for (const double time : times) EXPECT_TRUE(std::isfinite(time));
}

std::vector<WorkloadRequest> At(const std::vector<double>& times) {
  std::vector<WorkloadRequest> requests(times.size());
  for (size_t i = 0; i < times.size(); ++i) requests[i].arrival_s = times[i];
  return requests;
}

TEST(SpreadTicksTest, SpreadsEvenlyWithinTheShortestGap) {
  auto requests = At({0, 0, 0, 3, 9, 9});
  EXPECT_EQ(SpreadTicks(&requests), 3.0);
  const double expected[] = {0, 1, 2, 3, 9, 10.5};
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_DOUBLE_EQ(requests[i].arrival_s, expected[i]) << i;
  }
}

TEST(SpreadTicksTest, OneTimestampHasNoTick) {
  auto requests = At({4, 4});
  EXPECT_EQ(SpreadTicks(&requests), 0.0);
  EXPECT_EQ(requests[1].arrival_s, 4.0);
}

TEST(SetArrivalsTest, ATraceKeepsItsTimesUnlessARateIsGiven) {
  Workload workload{.requests = At({0, 1, 5})};
  EXPECT_OK(SetArrivals({}, /*is_trace=*/true, &workload));
  EXPECT_EQ(workload.requests[2].arrival_s, 5.0);
  EXPECT_OK(SetArrivals({.request_rate = 3.0}, /*is_trace=*/true, &workload));
  EXPECT_NEAR(workload.requests[2].arrival_s, 1.0, 1e-12);
}

TEST(SetArrivalsTest, OtherDataSetsAreSentAtOnceByDefault) {
  Workload workload{.requests = At({1, 2})};
  EXPECT_OK(SetArrivals({}, /*is_trace=*/false, &workload));
  EXPECT_EQ(workload.requests[1].arrival_s, 0.0);
}

TEST(SetArrivalsTest, ScalesATraceToARate) {
  Workload workload{.requests = At({0, 0, 30, 90})};
  ASSERT_OK(SetArrivals({.request_rate = 0.1, .scale_trace = true},
                        /*is_trace=*/true, &workload));
  // Four requests in 40 s instead of 90.
  const double expected[] = {0, 0, 30 * 4 / 9.0, 40};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(workload.requests[i].arrival_s, expected[i]) << i;
  }
  // Spread by ticks of 30 s first: 0, 15, 30, 90.
  workload.requests = At({0, 0, 30, 90});
  ASSERT_OK(SetArrivals(
      {.request_rate = 0.1, .spread_ticks = true, .scale_trace = true},
      /*is_trace=*/true, &workload));
  EXPECT_DOUBLE_EQ(workload.requests[1].arrival_s, 15 * 4 / 9.0);
  EXPECT_DOUBLE_EQ(workload.tick_s, 30 * 4 / 9.0);
  // However short it is.
  workload = {.requests = At({0, 0.5e-310, 1e-310})};
  ASSERT_OK(
      SetArrivals({.request_rate = 1, .scale_trace = true}, true, &workload));
  EXPECT_EQ(workload.requests[0].arrival_s, 0);
  EXPECT_NEAR(workload.requests[1].arrival_s, 1.5, 1e-9);
  EXPECT_DOUBLE_EQ(workload.requests[2].arrival_s, 3);
}

TEST(SetArrivalsTest, NoRunIsLongerThanAYear) {
  Workload workload{.requests = At({0, 1, 2, 3})};
  const double year_s = 366 * 86400.0;
  EXPECT_OK(SetArrivals({.request_rate = 4.0 / year_s}, false, &workload));
  EXPECT_DOUBLE_EQ(workload.requests.back().arrival_s, year_s);
  for (const double rate : {1e-12, 5e-324}) {
    EXPECT_THAT(SetArrivals({.request_rate = rate}, false, &workload),
                IsInvalid("request-rate: expected at least 1.26"));
  }
}

TEST(SetArrivalsTest, RejectsBadOrIneffectiveOptionsByName) {
  struct Case {
    ArrivalOptions options;
    bool is_trace;
    const char* why;
  };
  const Case cases[] = {
      {{.request_rate = 0.0}, false, "request-rate: expected more than 0"},
      {{.request_rate = std::nan("")}, false, "request-rate: expected"},
      {{.request_rate = 1.0, .burstiness = -1.0},
       false,
       "burstiness: expected"},
      {{.burstiness = 2.0}, true, "burstiness: has no effect"},
      {{.request_rate = 1.0, .burstiness = 1.0, .scale_trace = true},
       true,
       "burstiness: has no effect"},
      {{.spread_ticks = true}, false, "spread-ticks: has no effect"},
      {{.request_rate = 1.0, .spread_ticks = true},
       true,
       "spread-ticks: has no effect"},
      {{.scale_trace = true}, true, "scale-trace: has no effect"},
      {{.request_rate = kInfinity, .scale_trace = true},
       true,
       "scale-trace: has no effect"},
      {{.request_rate = 1.0, .scale_trace = true},
       false,
       "scale-trace: has no effect"}};
  for (const Case& c : cases) {
    Workload workload{.requests = At({0, 1})};
    EXPECT_THAT(SetArrivals(c.options, c.is_trace, &workload),
                IsInvalid(c.why));
  }
  Workload at_once{.requests = At({0, 0})};
  EXPECT_THAT(
      SetArrivals({.request_rate = 1.0, .scale_trace = true}, true, &at_once),
      IsInvalid("scale-trace: expected a trace whose timestamps differ"));
}

}  // namespace
}  // namespace blockmgr
