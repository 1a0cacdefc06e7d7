#include "bench/evict/layer_scorer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/naive_attention.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAreArray;

constexpr SyntheticShape kScoredShape = {.num_layers = 2,
                                         .num_q_heads = 4,
                                         .num_heads = 2,
                                         .length = 300,
                                         .head_dim = 8,
                                         .model_dim = 12};

// Every head's entries at positions that are no multiple of `step`; all if 0.
struct Entries {
  Entries(const LayerScorer& scorer, int32_t length, int32_t step) {
    for (int32_t head = 0; head < kScoredShape.num_heads; ++head) {
      for (int32_t position = 0; position < length; ++position) {
        if (step > 0 && position % (step + head) == 0) continue;
        positions.push_back(position);
        slots.push_back(scorer.SlotOf(head, position));
      }
      offsets.push_back(static_cast<int64_t>(positions.size()));
    }
  }
  EntryList list() const {
    return {.offsets = offsets, .slots = slots, .positions = positions};
  }
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
};

const float* RowOf(const std::vector<float>& values, int32_t head,
                   int32_t position) {
  return values.data() +
         static_cast<size_t>(head * kScoredShape.length + position) *
             static_cast<size_t>(kScoredShape.head_dim);
}

double Dot(const float* a, const float* b) {
  double sum = 0;
  for (int32_t i = 0; i < kScoredShape.head_dim; ++i) {
    sum += double{a[i]} * b[i];
  }
  return sum;
}

// Attention that queries [begin, end) pay to the entries of a KV head, summed
// over its query heads and them, in float64.
std::vector<double> NaiveSums(const Tensors& tensors, size_t layer,
                              int32_t head, std::span<const int32_t> positions,
                              int32_t begin, int32_t end) {
  const int32_t group = kScoredShape.num_q_heads / kScoredShape.num_heads;
  std::vector<double> sums(positions.size());
  for (int32_t q_head = head * group; q_head < (head + 1) * group; ++q_head) {
    for (int32_t query = begin; query < end; ++query) {
      const auto seen = std::ranges::upper_bound(positions, query);
      const std::vector<double> weights = NaiveAttention(
          tensors, layer, q_head, query, {positions.begin(), seen});
      for (size_t i = 0; i < weights.size(); ++i) sums[i] += weights[i];
    }
  }
  return sums;
}

TEST(LayerScorerTest, SumsAttentionOfQueriesInAnyPieces) {
  const Tensors tensors = MakeSyntheticTensors(kScoredShape, 4);
  const EvictionPolicy policy = *ParsePolicy("h2o");
  ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      LayerScorer::Create(policy, tensors, 1, 16, DType::kFloat32));
  const Entries entries(*scorer, kScoredShape.length, 3);
  for (const auto& [begin, end] :
       {std::pair(0, 1), {1, 270}, {270, 270}, {270, 300}}) {
    scorer->Observe(begin, end, entries.list());
  }
  std::vector<float> scores(entries.positions.size());
  scorer->Score(kScoredShape.length, entries.list(), scores, {}, {});
  for (int32_t head = 0; head < kScoredShape.num_heads; ++head) {
    const auto first = static_cast<size_t>(entries.offsets[head]);
    const auto count = static_cast<size_t>(entries.offsets[head + 1]) - first;
    const std::vector<double> sums =
        NaiveSums(tensors, 1, head,
                  std::span(entries.positions).subspan(first, count), 0, 300);
    for (size_t i = 0; i < count; ++i) {
      // The mean over the two query heads of a group.
      EXPECT_NEAR(scores[first + i], sums[i] / 2, 2e-5 * sums[i]) << i;
    }
  }
}

TEST(LayerScorerTest, ScoresTheLayerItWasMadeFor) {
  const Tensors tensors = MakeSyntheticTensors(kScoredShape, 5);
  const EvictionPolicy policy = *ParsePolicy("knorm");
  for (const int32_t layer : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(
        const auto scorer,
        LayerScorer::Create(policy, tensors, layer, 7, DType::kFloat32));
    const Entries entries(*scorer, kScoredShape.length, 0);
    std::vector<float> scores(entries.positions.size());
    scorer->Score(kScoredShape.length, entries.list(), scores, {}, {});
    for (int32_t head = 0; head < kScoredShape.num_heads; ++head) {
      for (int32_t position = 0; position < kScoredShape.length; ++position) {
        const float* key = RowOf(
            tensors.layers[static_cast<size_t>(layer)].keys, head, position);
        EXPECT_NEAR(
            scores[static_cast<size_t>(head * kScoredShape.length + position)],
            -std::sqrt(Dot(key, key)), 1e-5);
      }
    }
  }
}

TEST(LayerScorerTest, MeasuresValuesThroughTheOutputProjection) {
  const Tensors tensors = MakeSyntheticTensors(kScoredShape, 6);
  const EvictionPolicy policy =
      *ParsePolicy("streaming | uniform | critical(norm=l1)");
  ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      LayerScorer::Create(policy, tensors, 0, 16, DType::kFloat32));
  const Entries entries(*scorer, kScoredShape.length, 5);
  std::vector<float> norms(entries.positions.size());
  scorer->Score(kScoredShape.length, entries.list(), {}, norms, {});
  const LayerTensors& layer = tensors.layers[0];
  const auto model_dim = static_cast<size_t>(kScoredShape.model_dim);
  for (const size_t i : {size_t{0}, size_t{77}, norms.size() - 1}) {
    const int32_t head = static_cast<int64_t>(i) < entries.offsets[1] ? 0 : 1;
    const float* value = RowOf(layer.values, head, entries.positions[i]);
    double norm = 0;
    for (int32_t q_head = 2 * head; q_head < 2 * head + 2; ++q_head) {
      for (size_t column = 0; column < model_dim; ++column) {
        double sum = 0;
        for (int32_t row = 0; row < kScoredShape.head_dim; ++row) {
          const auto at =
              static_cast<size_t>(q_head * kScoredShape.head_dim + row) *
              model_dim;
          sum += double{value[row]} * layer.output_projection[at + column];
        }
        norm += std::abs(sum) / 2;
      }
    }
    EXPECT_NEAR(norms[i], norm, 1e-5 * norm) << i;
  }
}

TEST(LayerScorerTest, TakesScoresOfTheCaller) {
  Tensors tensors;
  tensors.num_q_heads = tensors.num_heads = 2;
  tensors.length = kScoredShape.length;
  LayerTensors& layer = tensors.layers.emplace_back();
  for (int i = 0; i < 600; ++i) {
    layer.scores.push_back(static_cast<float>(i));
  }
  const EvictionPolicy policy = *ParsePolicy("external");
  ASSERT_OK_AND_ASSIGN(
      const auto scorer,
      LayerScorer::Create(policy, tensors, 0, 16, DType::kFloat32));
  const Entries entries(*scorer, kScoredShape.length, 2);
  std::vector<float> scores(entries.positions.size());
  scorer->Score(kScoredShape.length, entries.list(), scores, {}, {});
  std::vector<float> expected;
  for (size_t i = 0; i < entries.positions.size(); ++i) {
    const bool second = static_cast<int64_t>(i) >= entries.offsets[1];
    expected.push_back(
        static_cast<float>(entries.positions[i] + (second ? 300 : 0)));
  }
  EXPECT_THAT(scores, ElementsAreArray(expected));
}

TEST(CheckTensorsTest, NamesWhatIsMissingAndWhoReadsIt) {
  const Tensors whole = MakeSyntheticTensors(kScoredShape, 7);
  struct Missing {
    std::vector<float> LayerTensors::*tensor;
    const char* policy;
    const char* name;
    const char* reader;
  };
  const Missing cases[] = {
      {&LayerTensors::keys, "keydiff", "keys", "keydiff"},
      {&LayerTensors::keys, "snapkv", "keys", "snapkv"},
      {&LayerTensors::queries, "snapkv", "queries", "snapkv"},
      {&LayerTensors::queries, "expected_attention", "queries",
       "expected_attention"},
      {&LayerTensors::values, "expected_attention", "values",
       "expected_attention"},
      {&LayerTensors::values, "knorm | uniform | critical", "values",
       "critical"},
      {&LayerTensors::output_projection, "knorm | uniform | critical",
       "output projection", "critical"},
      {&LayerTensors::scores, "external", "scores", "external"},
  };
  for (const Missing& missing : cases) {
    SCOPED_TRACE(missing.policy);
    Tensors tensors = whole;
    (tensors.layers[1].*missing.tensor).clear();
    EXPECT_THAT(CheckTensors(*ParsePolicy(missing.policy), tensors),
                IsInvalid(missing.name, missing.reader, "got none"));
  }
}

TEST(CheckTensorsTest, AsksForNothingThatNobodyReads) {
  Tensors tensors = MakeSyntheticTensors(kScoredShape, 8);
  for (LayerTensors& layer : tensors.layers) {
    layer.raw_queries = layer.queries;
    layer.queries.clear();
  }
  EXPECT_THAT(CheckTensors(*ParsePolicy("expected_attention"), tensors),
              IsOk());
  for (LayerTensors& layer : tensors.layers) layer = LayerTensors();
  for (const char* policy : {"streaming", "random(seed=3) | adakv"}) {
    EXPECT_THAT(CheckTensors(*ParsePolicy(policy), tensors), IsOk());
  }
}

TEST(LayerScorerTest, RefusesRowsThatAnArenaCannotHold) {
  SyntheticShape shape = kScoredShape;
  shape.head_dim = 6;  // 24 bytes: no multiple of 16
  const Tensors tensors = MakeSyntheticTensors(shape, 9);
  EXPECT_THAT(LayerScorer::Create(*ParsePolicy("knorm"), tensors, 0, 16,
                                  DType::kFloat32),
              IsInvalid("head_dim"));
}

}  // namespace
}  // namespace blockmgr
