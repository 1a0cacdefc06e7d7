#include "scheduler/kept_histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(KeptHistogramTest, IsZeroWithoutSamples) {
  const KeptHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.0), 0);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Quantile(1.0), 0);
}

TEST(KeptHistogramTest, StartsAnewWhenCleared) {
  KeptHistogram histogram;
  histogram.Add(std::vector<int32_t>{3, 9, 70});
  histogram.Clear();
  EXPECT_EQ(histogram.Quantile(1.0), 0);
  histogram.Add(std::vector<int32_t>{5});
  EXPECT_EQ(histogram.Quantile(0.0), 5);
  EXPECT_EQ(histogram.Quantile(1.0), 5);
}

TEST(KeptHistogramTest, CountsZerosAsSamples) {
  KeptHistogram histogram;
  histogram.Add(std::vector<int32_t>{0, 0, 7});
  EXPECT_EQ(histogram.Quantile(0.0), 0);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Quantile(1.0), 7);
}

TEST(KeptHistogramTest, AgreesWithSortedSamples) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    KeptHistogram histogram;
    std::vector<int32_t> all;
    for (int32_t batch = 0; batch < 5; ++batch) {
      std::vector<int32_t> values(random() % 9);
      for (int32_t& value : values) {
        value = static_cast<int32_t>(random() % 300);
      }
      histogram.Add(values);
      all.insert(all.end(), values.begin(), values.end());
    }
    if (all.empty()) continue;
    std::ranges::sort(all);
    for (const double fraction : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double rank = std::ceil(fraction * static_cast<double>(all.size()));
      const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
      EXPECT_EQ(histogram.Quantile(fraction), all[index]) << fraction;
    }
  }
}

}  // namespace
}  // namespace blockmgr
