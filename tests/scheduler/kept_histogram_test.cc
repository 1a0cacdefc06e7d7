#include "scheduler/kept_histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(KeptHistogramTest, StartsAnewWhenCleared) {
  KeptHistogram histogram;
  for (int32_t round = 0; round < 2; ++round) {
    for (const double fraction : {0.0, 0.5, 1.0}) {
      EXPECT_EQ(histogram.Quantile(fraction), 0) << fraction;
    }
    histogram.Add(std::vector<int32_t>{3, 9, 70});
    EXPECT_EQ(histogram.Quantile(0.0), 3);
    histogram.Clear();
  }
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
        value = static_cast<int32_t>(random() % (seed % 2 == 0 ? 4 : 300));
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
