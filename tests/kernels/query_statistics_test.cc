#include "kernels/cpu/query_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"

namespace blockmgr {
namespace {

// Sums token by token, element by element.
QueryStatistics NaiveStatistics(const ModelLayout& layout,
                                const std::vector<float>& queries) {
  const int64_t dim = layout.head_dim;
  const int64_t width = layout.num_q_heads * dim;
  QueryStatistics statistics;
  statistics.sums.resize(width);
  statistics.products.resize(width * dim);
  for (int64_t begin = 0; begin < std::ssize(queries); begin += dim) {
    const int64_t q_head = begin % width / dim;
    for (int64_t i = 0; i < dim; ++i) {
      const double x = queries[begin + i];
      statistics.sums[q_head * dim + i] += x;
      for (int64_t j = 0; j < dim; ++j) {
        statistics.products[(q_head * dim + i) * dim + j] +=
            x * double{queries[begin + j]};
      }
    }
  }
  statistics.count = std::ssize(queries) / width;
  return statistics;
}

class QueryStatisticsTest : public EveryTargetTest {};

// Equal to the bit: products of floats are exact, and the order is the same.
TEST_P(QueryStatisticsTest, SumsAreThoseOfEveryTokenInTurnForEverySplit) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = RandomLayout(rng, DType::kFloat32, 1);
    const int32_t num_tokens = RandomInt(rng, 1, 150);
    const int64_t width = int64_t{layout.num_q_heads} * layout.head_dim;
    const std::vector<float> queries = RandomFloats(rng, num_tokens * width);
    QueryStatistics statistics;
    for (int32_t begin = 0; begin < num_tokens;) {
      const int32_t count =
          std::min(num_tokens - begin, RandomInt(rng, 0, seed < 3 ? 12 : 100));
      AddQueriesTo(layout, &queries[begin * width], count, &statistics);
      begin += count;
    }
    const QueryStatistics expected = NaiveStatistics(layout, queries);
    EXPECT_EQ(statistics.count, expected.count);
    EXPECT_EQ(statistics.sums, expected.sums);
    EXPECT_EQ(statistics.products, expected.products);
  }
}

BM_FOR_EVERY_TARGET(QueryStatisticsTest);

std::vector<double> Frequencies(int64_t half) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    frequencies.push_back(std::pow(1e4, -static_cast<double>(i) / half));
  }
  return frequencies;
}

TEST(AverageRotationTest, IsTheMeanOverPositions) {
  std::vector<double> frequencies = Frequencies(32);
  frequencies.push_back(0.0);
  frequencies.push_back(1e-12);
  frequencies.push_back(3.0);
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {7, 1}, {100, 2}, {1000, 512}, {1000000, 333}}) {
    SCOPED_TRACE(testing::Message() << first << " + " << count);
    const MeanRotation rotation = AverageRotation(frequencies, first, count);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      double c = 0.0;
      double s = 0.0;
      for (int64_t p = first; p < first + count; ++p) {
        c += std::cos(static_cast<double>(p) * frequencies[i]);
        s += std::sin(static_cast<double>(p) * frequencies[i]);
      }
      EXPECT_NEAR(rotation.cosines[i], c / static_cast<double>(count), 1e-9);
      EXPECT_NEAR(rotation.sines[i], s / static_cast<double>(count), 1e-9);
    }
  }
}

TEST(PredictQueriesTest, RotatesMeanAndCovariance) {
  constexpr int64_t kDim = 24;
  constexpr int64_t kTokens = 50;
  const ModelLayout layout{
      .num_layers = 1, .num_heads = 1, .num_q_heads = 2, .head_dim = kDim};
  Rng rng(3);
  std::vector<float> queries = RandomFloats(rng, kTokens * 2 * kDim);
  // Far from zero: the covariance is a small difference of large numbers.
  for (float& x : queries) x += 100.0f;
  QueryStatistics statistics;
  AddQueriesTo(layout, queries.data(), kTokens, &statistics);
  const MeanRotation rotation = AverageRotation(Frequencies(kDim / 2), 50, 8);
  // R as a matrix, from y = x * c + rotate_half(x) * s.
  Matrix r(kDim, std::vector<double>(kDim));
  for (int64_t i = 0; i < kDim / 2; ++i) {
    r[i][i] = r[i + kDim / 2][i + kDim / 2] = rotation.cosines[i];
    r[i][i + kDim / 2] = -rotation.sines[i];
    r[i + kDim / 2][i] = rotation.sines[i];
  }
  for (int32_t q_head = 0; q_head < 2; ++q_head) {
    // Each query turned, then moments of those: linear maps commute with them.
    Matrix turned(kTokens, std::vector<double>(kDim));
    std::vector<double> mean(kDim);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t i = 0; i < kDim; ++i) {
        for (int64_t j = 0; j < kDim; ++j) {
          turned[t][i] += r[i][j] * queries[(t * 2 + q_head) * kDim + j];
        }
        mean[i] += turned[t][i] / kTokens;
      }
    }
    const FutureQueries future = PredictQueries(statistics, rotation, q_head);
    for (int64_t i = 0; i < kDim; ++i) {
      EXPECT_NEAR(future.mean[i], mean[i], 1e-5 * 150);
      for (int64_t j = 0; j < kDim; ++j) {
        double covariance = 0.0;
        for (int64_t t = 0; t < kTokens; ++t) {
          covariance +=
              (turned[t][i] - mean[i]) * (turned[t][j] - mean[j]) / kTokens;
        }
        EXPECT_NEAR(future.covariance[i * kDim + j], covariance, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
