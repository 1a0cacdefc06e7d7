#include "bench/charts/chart_axis.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(ChartAxisTest, NiceCeilingIsTheNextRoundNumber) {
  EXPECT_DOUBLE_EQ(NiceCeiling(1.0), 1.0);
  EXPECT_DOUBLE_EQ(NiceCeiling(1.1), 2.0);
  EXPECT_DOUBLE_EQ(NiceCeiling(2.1), 5.0);
  EXPECT_DOUBLE_EQ(NiceCeiling(5.1), 10.0);
  EXPECT_DOUBLE_EQ(NiceCeiling(0.03), 0.05);
  EXPECT_DOUBLE_EQ(NiceCeiling(1001), 2000);
  // Not 0.2: rounding must not push a round number up.
  EXPECT_DOUBLE_EQ(NiceCeiling(0.1 * 3 / 3), 0.1);
}

TEST(ChartAxisTest, LinearTicksAreRoundAndInside) {
  EXPECT_THAT(LinearTicks(0.0, 1.0, 6),
              ElementsAre(DoubleEq(0.0), DoubleNear(0.2, 1e-12),
                          DoubleNear(0.4, 1e-12), DoubleNear(0.6, 1e-12),
                          DoubleNear(0.8, 1e-12), DoubleNear(1.0, 1e-12)));
  EXPECT_THAT(LinearTicks(-3.0, 12.0, 4), ElementsAre(0.0, 5.0, 10.0));
  EXPECT_FALSE(std::signbit(LinearTicks(0.0, 1.0, 6).front()));
}

TEST(ChartAxisTest, LinearTicksAreEvenAndNeverTooMany) {
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    std::uniform_real_distribution<double> uniform(-1.0, 1.0);
    const double lo = uniform(rng) * std::pow(10.0, 6.0 * uniform(rng));
    const double range =
        std::abs(uniform(rng)) * std::pow(10.0, 6.0 * uniform(rng)) + 1e-7;
    // Ranges that doubles near `lo` resolve.
    const double hi = lo + std::max(range, 1e-3 * std::abs(lo));
    const int max_ticks = 2 + static_cast<int>(rng() % 12);
    const std::vector<double> ticks = LinearTicks(lo, hi, max_ticks);
    EXPECT_LE(ticks.size(), static_cast<size_t>(max_ticks));
    // With room for four there are some.
    if (max_ticks >= 4) {
      EXPECT_GE(ticks.size(), 1u);
    }
    for (size_t i = 0; i < ticks.size(); ++i) {
      EXPECT_GE(ticks[i], lo - 1e-6 * (hi - lo));
      EXPECT_LE(ticks[i], hi + 1e-6 * (hi - lo));
      if (i >= 2) {
        EXPECT_NEAR(ticks[i] - ticks[i - 1], ticks[1] - ticks[0],
                    1e-6 * (hi - lo));
      }
    }
    ASSERT_FALSE(HasFailure());
  }
}

TEST(ChartAxisTest, LogTicksAreOneTwoFive) {
  EXPECT_THAT(LogTicks(0.05, 1.0, 8),
              ElementsAre(DoubleNear(0.05, 1e-12), DoubleNear(0.1, 1e-12),
                          DoubleNear(0.2, 1e-12), DoubleNear(0.5, 1e-12),
                          DoubleNear(1.0, 1e-12)));
}

TEST(ChartAxisTest, ManyDecadesGetPowersOfTen) {
  const std::vector<double> ticks = LogTicks(1e-12, 1.0, 7);
  EXPECT_LE(ticks.size(), 7u);
  EXPECT_GE(ticks.size(), 3u);
  for (size_t i = 1; i < ticks.size(); ++i) {
    EXPECT_NEAR(std::log10(ticks[i] / ticks[i - 1]),
                std::log10(ticks[1] / ticks[0]), 1e-9);
  }
}

TEST(ChartAxisTest, MapsLinearly) {
  const Axis axis = {.lo = 2, .hi = 4, .pixel_lo = 100, .pixel_hi = 0};
  EXPECT_DOUBLE_EQ(axis.Map(2), 100.0);
  EXPECT_DOUBLE_EQ(axis.Map(2.5), 75.0);
  EXPECT_DOUBLE_EQ(axis.Map(4), 0.0);
}

TEST(ChartAxisTest, MapsLogarithms) {
  const Axis axis = {
      .lo = 0.01, .hi = 100, .pixel_lo = 0, .pixel_hi = 40, .log = true};
  EXPECT_NEAR(axis.Map(0.01), 0.0, 1e-9);
  EXPECT_NEAR(axis.Map(1.0), 20.0, 1e-9);
  EXPECT_NEAR(axis.Map(10.0), 30.0, 1e-9);
}

TEST(ChartAxisTest, LabelsAreShort) {
  EXPECT_EQ(TickLabel(0.30000000000000004), "0.3");
  EXPECT_EQ(TickLabel(15000), "15000");
  EXPECT_EQ(TickLabel(1e-7), "1e-07");
}

}  // namespace
}  // namespace blockmgr
