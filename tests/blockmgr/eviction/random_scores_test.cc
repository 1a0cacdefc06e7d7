#include "blockmgr/eviction/random_scores.h"

#include <array>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

std::vector<float> Scores(int32_t seed, int32_t layer, int32_t head,
                          const std::vector<int32_t>& positions) {
  std::vector<float> scores(positions.size(), -1.0f);
  RandomScores(seed, layer, head, positions, scores);
  return scores;
}

std::vector<int32_t> FirstPositions(int32_t count) {
  std::vector<int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

TEST(RandomScoresTest, DependsOnThePositionNotOnTheRank) {
  const std::vector<float> all = Scores(7, 3, 2, FirstPositions(1000));
  const std::vector<int32_t> some = {0, 3, 4, 500, 999};
  const std::vector<float> scores = Scores(7, 3, 2, some);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(scores[i], all[some[i]]);
  EXPECT_TRUE(Scores(7, 3, 2, {}).empty());
}

TEST(RandomScoresTest, EveryArgumentChangesNearlyEveryScore) {
  const std::vector<int32_t> positions = FirstPositions(1000);
  const std::vector<std::vector<float>> rows = {
      Scores(0, 0, 0, positions),  Scores(1, 0, 0, positions),
      Scores(-1, 0, 0, positions), Scores(0, 1, 0, positions),
      Scores(0, 0, 1, positions),  Scores(1, 1, 1, positions)};
  for (size_t a = 0; a < rows.size(); ++a) {
    for (size_t b = a + 1; b < rows.size(); ++b) {
      int32_t num_equal = 0;
      for (size_t i = 0; i < positions.size(); ++i) {
        num_equal += rows[a][i] == rows[b][i] ? 1 : 0;
      }
      EXPECT_LE(num_equal, 1) << a << " and " << b;
    }
  }
}

TEST(RandomScoresTest, IsUniformBelowOne) {
  constexpr int32_t kScores = 160000;
  constexpr int32_t kBins = 16;
  for (const int32_t seed : {0, 1, -5, 1 << 30}) {
    SCOPED_TRACE(seed);
    const std::vector<float> scores =
        Scores(seed, 5, 6, FirstPositions(kScores));
    std::array<int32_t, kBins> counts = {};
    for (const float score : scores) {
      ASSERT_GE(score, 0.0f);
      ASSERT_LT(score, 1.0f);
      ++counts[static_cast<int32_t>(score * kBins)];
    }
    // The standard deviation of a bin is 97; six of them.
    for (const int32_t count : counts) {
      EXPECT_NEAR(count, kScores / kBins, 580);
    }
    // Neighbours do not go together.
    double product = 0.0;
    for (size_t i = 1; i < scores.size(); ++i) {
      product += (scores[i] - 0.5) * (scores[i - 1] - 0.5);
    }
    EXPECT_NEAR(product / kScores, 0.0, 0.00125);
  }
}

TEST(RandomScoresTest, HasFewTies) {
  const std::vector<float> scores = Scores(3, 1, 4, FirstPositions(2000));
  EXPECT_GE(std::set<float>(scores.begin(), scores.end()).size(), 1990u);
}

}  // namespace
}  // namespace blockmgr
