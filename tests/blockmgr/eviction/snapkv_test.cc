#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/select.h"
#include "tests/testing/naive_snapkv.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<float> Reduce(const ScorerSpec& scorer,
                          const std::vector<float>& attention,
                          int32_t group_size) {
  std::vector<float> scores(attention.size() / group_size, -7.0f);
  ReduceSnapKv(scorer, attention, group_size, scores);
  return scores;
}

TEST(SnapKvTest, AcceptsKernelsLargerThanThePast) {
  ScorerSpec scorer;
  scorer.kernel = kMaxKernel;
  EXPECT_THAT(Reduce(scorer, {1, 2}, 1), ElementsAre(2, 2));
  EXPECT_THAT(Reduce(scorer, {1}, 1), ElementsAre(1));
  EXPECT_THAT(Reduce(scorer, {}, 1), IsEmpty());
}

TEST(SnapKvTest, PassesNaNOnWhereverItStands) {
  for (const PoolKind pool : {PoolKind::kMax, PoolKind::kAvg}) {
    for (const PoolOrder order : {PoolOrder::kAdaKv, PoolOrder::kKvPress}) {
      for (const GroupReduce group : {GroupReduce::kMean, GroupReduce::kMax}) {
        for (size_t at = 0; at < 10; ++at) {
          ScorerSpec scorer;
          scorer.kernel = 3;
          scorer.pool = pool;
          scorer.order = order;
          scorer.group = group;
          std::vector<float> attention(10, 1.0f);  // 2 rows of 5
          attention[at] = NAN;
          const std::vector<float> scores = Reduce(scorer, attention, 2);
          for (int64_t i = 0; i < 5; ++i) {
            const bool near = std::abs(i - static_cast<int64_t>(at % 5)) <= 1;
            EXPECT_EQ(std::isnan(scores[i]), near) << at << " " << i;
          }
        }
      }
    }
  }
}

TEST(SnapKvTest, AgreesWithTheNaiveReduction) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    ScorerSpec scorer;
    scorer.pool = static_cast<PoolKind>(random() % 2);
    scorer.order = static_cast<PoolOrder>(random() % 2);
    scorer.group = static_cast<GroupReduce>(random() % 2);
    scorer.kernel = 1 + 2 * static_cast<int32_t>(random() % 8);
    const int32_t group_size = 1 + static_cast<int32_t>(random() % 8);
    std::vector<float> attention((random() % 40) * group_size);
    for (float& weight : attention) {
      weight = std::ldexp(static_cast<float>(random() >> 40), -24);
    }
    const std::vector<float> scores = Reduce(scorer, attention, group_size);
    std::vector<std::vector<double>> rows;
    for (int32_t row = 0; row < group_size; ++row) {
      const auto first = attention.begin() + row * std::ssize(scores);
      rows.emplace_back(first, first + std::ssize(scores));
    }
    const std::vector<double> expected = NaiveSnapKv(scorer, rows);
    // Sums of at most 15 + 8 fp32 terms in [0, 1].
    constexpr double kTolerance =
        23 * double{std::numeric_limits<float>::epsilon()};
    for (size_t i = 0; i < scores.size(); ++i) {
      ASSERT_NEAR(scores[i], expected[i], kTolerance * expected[i])
          << "seed " << seed << " entry " << i;
    }
  }
}

}  // namespace
}  // namespace blockmgr
