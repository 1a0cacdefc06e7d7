#include "scheduler/server/request_metrics.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(DurationHistogramTest, ABucketEndsWithItsBound) {
  constexpr auto& kBounds = DurationHistogram::kBounds;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    DurationHistogram histogram;
    histogram.Observe(kBounds[i]);
    histogram.Observe(std::nextafter(kBounds[i], 1e9));
    EXPECT_EQ(histogram.counts[i], 1u) << i;
    EXPECT_EQ(histogram.counts[i + 1], 1u) << i;
  }
}

TEST(DurationHistogramTest, EveryDurationIsCountedOnce) {
  DurationHistogram histogram;
  for (const double seconds :
       {0.0, 1e-9, 0.3, 999.0, 1e6, std::numeric_limits<double>::infinity()}) {
    histogram.Observe(seconds);
  }
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(),
                            uint64_t{0}),
            6u);
  EXPECT_EQ(histogram.counts.front(), 2u);
  EXPECT_EQ(histogram.counts.back(), 2u);
}

}  // namespace
}  // namespace blockmgr
