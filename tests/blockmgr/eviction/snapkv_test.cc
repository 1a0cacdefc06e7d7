#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/select.h"

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

double PoolAt(const ScorerSpec& scorer, const std::vector<double>& row,
              int64_t at) {
  double sum = 0;
  double max = -INFINITY;
  for (int64_t i = at - scorer.kernel / 2; i <= at + scorer.kernel / 2; ++i) {
    if (i < 0 || i >= std::ssize(row)) continue;
    sum += row[i];
    max = std::max(max, row[i]);
  }
  return scorer.pool == PoolKind::kMax ? max : sum / scorer.kernel;
}

double GroupAt(const ScorerSpec& scorer,
               const std::vector<std::vector<double>>& rows, int64_t at) {
  double sum = 0;
  double max = -INFINITY;
  for (const std::vector<double>& row : rows) {
    sum += row[at];
    max = std::max(max, row[at]);
  }
  return scorer.group == GroupReduce::kMax
             ? max
             : sum / static_cast<double>(rows.size());
}

std::vector<double> ReduceNaively(const ScorerSpec& scorer,
                                  const std::vector<float>& attention,
                                  int32_t group_size) {
  const int64_t size = std::ssize(attention) / group_size;
  std::vector<std::vector<double>> rows(group_size);
  for (int32_t row = 0; row < group_size; ++row) {
    rows[row].assign(attention.begin() + row * size,
                     attention.begin() + (row + 1) * size);
  }
  std::vector<double> scores(size);
  if (scorer.order == PoolOrder::kAdaKv) {
    std::vector<double> reduced(size);
    for (int64_t i = 0; i < size; ++i) reduced[i] = GroupAt(scorer, rows, i);
    for (int64_t i = 0; i < size; ++i) scores[i] = PoolAt(scorer, reduced, i);
    return scores;
  }
  std::vector<std::vector<double>> pooled = rows;
  for (int32_t row = 0; row < group_size; ++row) {
    for (int64_t i = 0; i < size; ++i) {
      pooled[row][i] = PoolAt(scorer, rows[row], i);
    }
  }
  for (int64_t i = 0; i < size; ++i) scores[i] = GroupAt(scorer, pooled, i);
  return scores;
}

TEST(SnapKvTest, AveragesCountThePadding) {
  ScorerSpec scorer;
  scorer.pool = PoolKind::kAvg;
  scorer.kernel = 3;
  EXPECT_THAT(Reduce(scorer, {3, 6, 9, 12}, 1), ElementsAre(3, 6, 9, 7));
}

TEST(SnapKvTest, MaximaIgnoreThePadding) {
  ScorerSpec scorer;
  scorer.kernel = 3;
  EXPECT_THAT(Reduce(scorer, {-3, -6, -9, -2}, 1), ElementsAre(-3, -3, -2, -2));
}

TEST(SnapKvTest, OrderMattersForMaxima) {
  ScorerSpec scorer;
  scorer.kernel = 3;
  const std::vector<float> attention = {4, 0, 0,  //
                                        0, 0, 8};
  EXPECT_THAT(Reduce(scorer, attention, 2), ElementsAre(2, 4, 4));
  scorer.order = PoolOrder::kKvPress;
  EXPECT_THAT(Reduce(scorer, attention, 2), ElementsAre(2, 6, 4));
}

TEST(SnapKvTest, KernelOneDoesNotPool) {
  ScorerSpec scorer;
  scorer.kernel = 1;
  EXPECT_THAT(Reduce(scorer, {3, 1, 2}, 1), ElementsAre(3, 1, 2));
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
    const std::vector<double> expected =
        ReduceNaively(scorer, attention, group_size);
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
