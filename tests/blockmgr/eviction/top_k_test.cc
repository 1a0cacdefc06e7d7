#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/random_case.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Top(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> ranks = {-1};
  TopK(scores, k, &ranks);
  return ranks;
}

std::vector<int32_t> SortedTopK(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> ranks(scores.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[a])) return !std::isnan(scores[b]);
    return scores[a] > scores[b];
  });
  ranks.resize(std::min<size_t>(ranks.size(), std::max<int64_t>(k, 0)));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

TEST(TopKTest, OrdersNaNInfinitiesAndZeros) {
  const std::vector<float> scores = {-0.0f,
                                     -NAN,
                                     0.0f,
                                     INFINITY,
                                     NAN,
                                     -INFINITY,
                                     std::numeric_limits<float>::denorm_min()};
  EXPECT_THAT(Top(scores, 2), ElementsAre(1, 4));
  EXPECT_THAT(Top(scores, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(Top(scores, 4), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(Top(scores, 5), ElementsAre(0, 1, 3, 4, 6));
  EXPECT_THAT(Top(scores, 6), ElementsAre(0, 1, 2, 3, 4, 6));
}

TEST(TopKTest, AcceptsEveryCount) {
  EXPECT_THAT(Top({}, 3), IsEmpty());
  EXPECT_THAT(Top({1, 2}, 0), IsEmpty());
  EXPECT_THAT(Top({1, 2}, -1), IsEmpty());
  EXPECT_THAT(Top({1, 2}, 2), ElementsAre(0, 1));
  EXPECT_THAT(Top({1, 2}, 9), ElementsAre(0, 1));
}

TEST(TopKTest, AgreesWithASort) {
  for (uint64_t seed = 0; seed < 50'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const size_t size = seed % 1000 == 0 ? 5000 : random() % 40;
    const std::vector<float> scores = RandomScores(random, size);
    const auto k = static_cast<int64_t>(random() % (size + 2));
    ASSERT_EQ(Top(scores, k), SortedTopK(scores, k))
        << "seed " << seed << " k " << k << " scores "
        << ::testing::PrintToString(scores);
  }
}

}  // namespace
}  // namespace blockmgr
