#include "kernels/cpu/query_stats.h"

#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/kernel_cases.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kStatsLayers = 2;
constexpr int32_t kStatsHeads = 3;
constexpr int32_t kStatsDim = 8;
constexpr int32_t kStatsTokens = 70;
constexpr int64_t kStatsWidth = int64_t{kStatsHeads} * kStatsDim;

// Queries of one layer, [kStatsTokens, kStatsHeads, kStatsDim]. They are far
// from zero, so that a covariance is a small difference of large numbers.
std::vector<float> FarQueries(Rng& rng) {
  std::vector<float> queries = RandomFloats(rng, kStatsTokens * kStatsWidth);
  for (float& x : queries) x += 50.0f;
  return queries;
}

// Mean and covariance in two passes.
double MeanOf(const std::vector<float>& queries, int64_t at) {
  double sum = 0;
  for (int64_t t = 0; t < kStatsTokens; ++t) {
    sum += queries[t * kStatsWidth + at];
  }
  return sum / kStatsTokens;
}
double CovarianceOf(const std::vector<float>& queries, int64_t a, int64_t b) {
  const double mean_a = MeanOf(queries, a);
  const double mean_b = MeanOf(queries, b);
  double sum = 0;
  for (int64_t t = 0; t < kStatsTokens; ++t) {
    sum += (queries[t * kStatsWidth + a] - mean_a) *
           (queries[t * kStatsWidth + b] - mean_b);
  }
  return sum / kStatsTokens;
}

TEST(QueryStatsTest, ATableHasMeanAndCovarianceOfAllQueries) {
  Rng rng(5);
  QueryStatsBuilder builder(kStatsLayers, kStatsHeads, kStatsDim);
  std::vector<std::vector<float>> queries;
  for (int32_t layer = 0; layer < kStatsLayers; ++layer) {
    queries.push_back(FarQueries(rng));
    const std::span<const float> all = queries.back();
    // Texts of several lengths, one without tokens.
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 9}, {9, 9}, {9, 60}, {60, kStatsTokens}}) {
      builder.AddQueries(
          layer, all.subspan(begin * kStatsWidth, (end - begin) * kStatsWidth));
    }
  }
  ASSERT_OK_AND_ASSIGN(const QueryStatsTable table, builder.Finish("far"));
  EXPECT_THAT(table.CheckShape(kStatsLayers, kStatsHeads, kStatsDim), IsOk());
  EXPECT_EQ(table.num_queries, kStatsTokens);
  EXPECT_EQ(table.model, "far");
  size_t mean = 0;
  size_t covariance = 0;
  for (const std::vector<float>& layer : queries) {
    for (int64_t head = 0; head < kStatsHeads; ++head) {
      for (int64_t i = 0; i < kStatsDim; ++i) {
        EXPECT_NEAR(table.means[mean++], MeanOf(layer, head * kStatsDim + i),
                    4e-6);
        for (int64_t j = i; j < kStatsDim; ++j) {
          EXPECT_NEAR(
              table.covariances[covariance++],
              CovarianceOf(layer, head * kStatsDim + i, head * kStatsDim + j),
              1e-6);
        }
      }
    }
  }
}

TEST(QueryStatsTest, StatisticsOfATableAreOfItsMeanAndCovariance) {
  QueryStatsTable table;
  table.num_layers = kStatsLayers;
  table.num_q_heads = kStatsHeads;
  table.head_dim = kStatsDim;
  table.num_queries = 7;
  Rng rng(9);
  table.means = RandomFloats(rng, kStatsLayers * kStatsWidth);
  table.covariances = RandomFloats(
      rng, int64_t{kStatsLayers} * kStatsHeads * table.covariance_size());
  // The upper triangle as a matrix.
  const auto covariance = [&](int64_t head, int64_t i, int64_t j) -> double {
    if (i > j) std::swap(i, j);
    int64_t at = head * table.covariance_size();
    for (int64_t row = 0; row < i; ++row) at += kStatsDim - row;
    return table.covariances[at + j - i];
  };
  for (const auto& [layer, first, count] :
       std::vector<std::tuple<int32_t, int32_t, int32_t>>{
           {0, 0, 3}, {1, 0, 3}, {1, 1, 2}, {0, 2, 1}}) {
    const QueryStatistics statistics = StatisticsOf(table, layer, first, count);
    ASSERT_EQ(std::ssize(statistics.sums), count * kStatsDim);
    ASSERT_EQ(std::ssize(statistics.products), count * kStatsDim * kStatsDim);
    const auto n = static_cast<double>(statistics.count);
    for (int64_t h = 0; h < count; ++h) {
      const int64_t head = layer * kStatsHeads + first + h;
      for (int64_t i = 0; i < kStatsDim; ++i) {
        const double mean_i = statistics.sums[h * kStatsDim + i] / n;
        EXPECT_EQ(mean_i, table.means[head * kStatsDim + i]);
        for (int64_t j = 0; j < kStatsDim; ++j) {
          const double mean_j = statistics.sums[h * kStatsDim + j] / n;
          EXPECT_NEAR(
              statistics.products[(h * kStatsDim + i) * kStatsDim + j] / n -
                  mean_i * mean_j,
              covariance(head, i, j), 1e-14);
        }
      }
    }
  }
}

TEST(QueryStatsTest, EqualQueriesHaveNoVariance) {
  QueryStatsBuilder builder(1, 1, 4);
  for (int i = 0; i < 1000; ++i) {
    builder.AddQueries(0, std::vector<float>{0.1f, 1e5f / 3.0f, 0, 0});
  }
  ASSERT_OK_AND_ASSIGN(const QueryStatsTable table, builder.Finish(""));
  EXPECT_GE(table.covariances[0], 0.0f);
  EXPECT_NEAR(table.covariances[0], 0.0, 1e-12);
  EXPECT_GE(table.covariances[4], 0.0f);
  // Relative to the squares, 1e9.
  EXPECT_NEAR(table.covariances[4], 0.0, 1e-3);
}

TEST(QueryStatsTest, LayersHaveSeenTheSame) {
  QueryStatsBuilder builder(2, 1, 4);
  EXPECT_THAT(builder.Finish(""),
              IsInvalid("layer 0: expected as many queries as the "
                        "other layers, at least 1, got 0"));
  builder.AddQueries(0, std::vector<float>(8, 1.0f));
  builder.AddQueries(1, std::vector<float>(4, 1.0f));
  EXPECT_THAT(builder.Finish(""), IsInvalid("layer 1: expected"));
  builder.AddQueries(
      1, std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 0, 0, 0});
  EXPECT_THAT(builder.Finish(""),
              IsInvalid("means[1][0][0]: expected a number"));
}

}  // namespace
}  // namespace blockmgr
