// SnapKV scores against a float64 reference written from the method's text.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"
#include "tests/testing/case_count.h"
#include "tests/testing/naive_snapkv.h"

namespace blockmgr {
namespace {

// attention[g][j]: mean over the window of the softmax over all visible
// entries.
Matrix WindowMean(const ScoreCase& test, int32_t head, int64_t num_past) {
  const int32_t group_size = test.model.layout().group_size();
  Matrix mean(group_size, std::vector<double>(num_past));
  for (int32_t g = 0; g < group_size; ++g) {
    for (int32_t i = 0; i < test.num_queries; ++i) {
      const std::vector<double> weights = NaiveWeights(test, head, g, i);
      for (int64_t j = 0; j < num_past; ++j) {
        mean[g][j] += weights[j] / test.num_queries;
      }
    }
  }
  return mean;
}

std::vector<double> NaiveScores(const ScoreCase& test, const ScorerSpec& scorer,
                                int32_t head) {
  const int64_t begin = test.offsets[head];
  const int64_t end = test.offsets[head + 1];
  const int64_t num_past = end - begin - test.num_queries;
  std::vector<double> scores;
  if (num_past > 0) {
    scores = NaiveSnapKv(scorer, WindowMean(test, head, num_past));
  }
  scores.resize(end - begin, std::numeric_limits<double>::infinity());
  return scores;
}

class SnapKvTest : public testing::TestWithParam<DType> {};

TEST_P(SnapKvTest, MatchesNaiveScores) {
  for (uint64_t seed = 0; seed < SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 200);
    const int32_t num_queries = RandomInt(rng, 1, 40);
    const ScoreCase test(
        layout,
        {.window = num_queries, .length = num_queries + RandomInt(rng, 1, 150)},
        seed + 1000);
    const auto backend = test.model.MakeBackend();
    for (const PoolKind pool : {PoolKind::kMax, PoolKind::kAvg}) {
      const ScorerSpec scorer{
          .window = num_queries,
          .pool = pool,
          .kernel = 2 * RandomInt(rng, 0, 4) + 1,
          .order = seed % 2 == 0 ? PoolOrder::kAdaKv : PoolOrder::kKvPress,
          .group = seed % 4 < 2 ? GroupReduce::kMean : GroupReduce::kMax};
      const std::vector<float> scores = test.Run(*backend, scorer);
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const std::vector<double> expected = NaiveScores(test, scorer, head);
        const double largest =
            expected.size() == static_cast<std::size_t>(num_queries)
                ? 0.0
                : *std::max_element(expected.begin(),
                                    expected.end() - num_queries);
        for (std::size_t j = 0; j < expected.size(); ++j) {
          const float score = scores[test.offsets[head] + j];
          if (std::isinf(expected[j])) {
            ASSERT_EQ(score, std::numeric_limits<float>::infinity());
          } else {
            ASSERT_NEAR(score, expected[j], 5e-6 * largest)
                << "head " << head << " entry " << j;
          }
        }
      }
    }
  }
}

TEST_P(SnapKvTest, SlotsDoNotMatterOnlyRowsDo) {
  ModelLayout layout{.num_layers = 2,
                     .num_heads = 2,
                     .num_q_heads = 6,
                     .head_dim = 40,
                     .page_size = 4,
                     .dtype = GetParam(),
                     .num_blocks = 90};
  const ScoreCase test(layout, {.window = 8, .length = 100}, 5);
  ScoreCase moved = test;
  PoolModel other(layout);
  std::vector<SlotIndex> free = ShuffledSlots(layout, moved.rng);
  for (SlotIndex& slot : moved.slots) {
    std::ranges::copy(test.model.key(slot), other.key(free.back()).begin());
    slot = free.back();
    free.pop_back();
  }
  const ScorerSpec scorer;
  const std::vector<float> expected =
      test.Run(*test.model.MakeBackend(), scorer);
  EXPECT_EQ(moved.Run(*other.MakeBackend(), scorer), expected);
}

TEST_P(SnapKvTest, WindowCoveringTheSequenceProtectsEverything) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 2,
                           .num_q_heads = 2,
                           .head_dim = 8,
                           .page_size = 4,
                           .dtype = GetParam(),
                           .num_blocks = 8};
  const ScoreCase test(layout, {.window = 9, .length = 9}, 6);
  const std::vector<float> scores = test.Run(*test.model.MakeBackend(), {});
  EXPECT_EQ(scores,
            std::vector<float>(18, std::numeric_limits<float>::infinity()));
}

// critical(gqa_product): each query head's attention is pooled by itself and
// meets its own norms.
TEST_P(SnapKvTest, ProductsMatchNaiveProducts) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 100);
    const ScoreCase test(layout, {.window = 5, .length = 95}, seed + 2000);
    const ScorerSpec scorer{
        .window = 5,
        .kernel = 5,
        .order = seed % 2 == 0 ? PoolOrder::kAdaKv : PoolOrder::kKvPress};
    ExpectProductsMatch(test, scorer, rng, [&](int32_t head, int32_t g) {
      return NaivePool(scorer,
                       WindowMean(test, head, test.head_size(head) - 5)[g]);
    });
  }
}

TEST_P(SnapKvTest, NaNKeyIsInEveryScoreOfItsHeadOnly) {
  Rng rng(9);
  ModelLayout layout = LayoutFor(rng, GetParam(), 80);
  layout.num_heads = 3;
  layout.num_q_heads = 6;
  ScoreCase test(layout, {.window = 4, .length = 80}, 10);
  test.model.key(test.slots[test.offsets[1] + 5])[3] = std::nanf("");
  const std::vector<float> scores =
      test.Run(*test.model.MakeBackend(), {.window = 4});
  for (int32_t head = 0; head < 3; ++head) {
    for (int64_t e = test.offsets[head]; e < test.offsets[head + 1]; ++e) {
      EXPECT_EQ(std::isnan(scores[e]), head == 1 && test.positions[e] < 76);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SnapKvTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
