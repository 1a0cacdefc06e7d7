#include "kernels/cpu/drop_scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

// The squared distance of outputs with and without each entry, computed by
// leaving the entry out of the softmax.
std::vector<double> NaiveChanges(const ScoreCase& test, int32_t head, int32_t g,
                                 int32_t query) {
  const std::vector<double> weights = NaiveWeights(test, head, g, query);
  const auto dim = static_cast<std::size_t>(test.model.layout().head_dim);
  const auto output_without = [&](std::size_t left_out) {
    std::vector<double> output(dim);
    double sum = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) {
      if (j == left_out) continue;
      const std::span<const float> value =
          test.value(test.offsets[head] + static_cast<int64_t>(j));
      sum += weights[j];
      for (std::size_t d = 0; d < dim; ++d) output[d] += weights[j] * value[d];
    }
    for (double& element : output) element /= sum;
    return output;
  };
  const std::vector<double> full = output_without(weights.size());
  std::vector<double> changes;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    double square = 0;
    if (weights[j] > 0) {
      const std::vector<double> output = output_without(j);
      for (std::size_t d = 0; d < dim; ++d) {
        square += (output[d] - full[d]) * (output[d] - full[d]);
      }
    }
    changes.push_back(square);
  }
  return changes;
}

class DropScoresTest : public testing::TestWithParam<DType> {};

TEST_P(DropScoresTest, ScoresAreTheChangesWithoutAnEntry) {
  for (uint64_t seed = 0; seed < SlowCases(6); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 90);
    const int32_t window = RandomInt(rng, 2, 12);
    const int32_t kernel = seed % 2 == 0 ? 1 : 7;
    // Two entries or more are in the window, so nobody is everything.
    const ScoreCase test(
        layout, {.window = window, .length = window + RandomInt(rng, 1, 78)},
        seed + 700);
    const std::vector<float> scores = test.Run(
        *test.model.MakeBackend(),
        {.kind = ScorerKind::kDropKv, .window = window, .kernel = kernel});
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      std::vector<double> sums(static_cast<std::size_t>(test.head_size(head)));
      for (int32_t g = 0; g < layout.group_size(); ++g) {
        for (int32_t i = 0; i < window; ++i) {
          const std::vector<double> changes = NaiveChanges(test, head, g, i);
          for (std::size_t j = 0; j < changes.size(); ++j) {
            sums[j] += changes[j] / layout.group_size();
          }
        }
      }
      const auto num_past = static_cast<int64_t>(sums.size()) - window;
      for (int64_t j = 0; j < test.head_size(head); ++j) {
        const float score =
            scores[static_cast<std::size_t>(test.offsets[head] + j)];
        if (j >= num_past) {
          ASSERT_EQ(score, std::numeric_limits<float>::infinity());
          continue;
        }
        double expected = 0;
        for (int64_t k = std::max<int64_t>(0, j - kernel / 2);
             k <= std::min(num_past - 1, j + kernel / 2); ++k) {
          expected += sums[static_cast<std::size_t>(k)] / kernel;
        }
        ASSERT_NEAR(score, expected, 1e-3 * expected + 1e-9)
            << head << " " << j;
      }
    }
  }
}

// An entry that gets all attention is worth most, and no score is NaN.
TEST(DropScoresTest, AllAttentionIsNoDivisionByZero) {
  Rng rng(1);
  const ModelLayout layout = LayoutFor(rng, DType::kFloat32, 60);
  ScoreCase test(layout, {.window = 4, .length = 60, .everything = true}, 3);
  test.scale = 1000.0f;
  const std::vector<float> scores = test.Run(
      *test.model.MakeBackend(), {.kind = ScorerKind::kDropKv, .window = 4});
  for (const float score : scores) EXPECT_FALSE(std::isnan(score));
}

INSTANTIATE_TEST_SUITE_P(DTypes, DropScoresTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
