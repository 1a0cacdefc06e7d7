#include "tests/kernels/score_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

ScoreCase::ScoreCase(const ModelLayout& layout, const ScoreCaseOptions& options,
                     uint64_t seed)
    : rng(seed),
      model(layout),
      num_queries(options.window),
      length(options.length) {
  std::vector<SlotIndex> free = ShuffledSlots(layout, rng);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    // Of an ordinary head a quarter is gone; of some all, or all but one.
    const int32_t kind = RandomInt(rng, 0, 7);
    const int32_t only = kind == 0 ? -1 : RandomInt(rng, 0, length - 1);
    for (int32_t position = 0; position < length; ++position) {
      const bool in_window =
          options.whole_window && position >= length - num_queries;
      const bool gone = !options.whole_window && kind < 2
                            ? position != only
                            : RandomInt(rng, 0, 3) == 0;
      if (gone && !in_window && !options.everything) continue;
      BM_CHECK(!free.empty());
      positions.push_back(position);
      slots.push_back(free.back());
      free.pop_back();
      model.FillRandom(slots.back(), rng);
    }
    offsets.push_back(std::ssize(slots));
  }
  queries = RandomFloats(
      rng, int64_t{num_queries} * layout.num_q_heads * layout.head_dim);
}

ScoreBatch ScoreCase::Batch(const ScorerSpec& scorer) const {
  ScoreBatch batch;
  batch.scorer = scorer;
  batch.scale = scale;
  batch.entries = Entries();
  batch.window = Window();
  return batch;
}

std::vector<float> ScoreCase::Run(Backend& backend,
                                  const ScorerSpec& scorer) const {
  std::vector<float> scores(slots.size(),
                            std::numeric_limits<float>::quiet_NaN());
  ScoreBatch batch = Batch(scorer);
  batch.scores = scores;
  backend.Score(batch);
  return scores;
}

ModelLayout LayoutFor(Rng& rng, DType dtype, int32_t length) {
  ModelLayout layout = RandomLayout(rng, dtype, 0);
  layout.num_blocks = CeilDiv(length, layout.page_size) + 2;
  return layout;
}

std::vector<double> NaiveSoftmax(const std::vector<double>& logits) {
  double max = -std::numeric_limits<double>::infinity();
  for (const double x : logits) max = std::max(max, x);
  std::vector<double> weights;
  double sum = 0.0;
  for (const double x : logits) {
    weights.push_back(std::exp(x - max));
    sum += weights.back();
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> NaiveWeights(const ScoreCase& test, int32_t head,
                                 int32_t group_index, int32_t query) {
  const ModelLayout& layout = test.model.layout();
  const int64_t q_head = int64_t{head} * layout.group_size() + group_index;
  const float* q =
      &test.queries[(int64_t{query} * layout.num_q_heads + q_head) *
                    layout.head_dim];
  const int32_t position = test.length - test.num_queries + query;
  std::vector<double> logits;
  for (int64_t e = test.offsets[head]; e < test.offsets[head + 1]; ++e) {
    if (test.positions[e] > position) break;
    double dot = 0.0;
    for (int32_t k = 0; k < layout.head_dim; ++k) {
      dot += double{q[k]} * double{test.key(e)[k]};
    }
    logits.push_back(dot * test.scale);
  }
  std::vector<double> weights = NaiveSoftmax(logits);
  weights.resize(test.head_size(head));
  return weights;
}

void ExpectProductsMatch(
    const ScoreCase& test, const ScorerSpec& scorer, Rng& rng,
    const std::function<std::vector<double>(int32_t, int32_t)>& attention) {
  const ModelLayout& layout = test.model.layout();
  const int32_t group_size = layout.group_size();
  std::vector<float> norms = RandomFloats(rng, group_size * test.size());
  for (float& norm : norms) norm = std::abs(norm);
  std::vector<float> scores(test.size());
  std::vector<float> products(test.size());
  ScoreBatch batch = test.Batch(scorer);
  batch.q_head_norms = norms;
  batch.product_eps = 1e-3f;
  batch.scores = scores;
  batch.products = products;
  const auto backend = test.model.MakeBackend();
  backend->Score(batch);
  EXPECT_EQ(scores, test.Run(*backend, scorer));
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    const int64_t begin = test.offsets[head];
    const int64_t size = test.head_size(head);
    std::vector<double> expected(size);
    for (int32_t g = 0; g < group_size; ++g) {
      const std::vector<double> weights = attention(head, g);
      for (std::size_t j = 0; j < weights.size(); ++j) {
        const double norm =
            norms[group_size * begin + g * size + static_cast<int64_t>(j)];
        expected[j] += (weights[j] + 1e-3) * norm / group_size;
      }
    }
    for (int64_t j = 0; j < size; ++j) {
      if (test.positions[begin + j] >= test.length - test.num_queries) {
        ASSERT_EQ(products[begin + j], std::numeric_limits<float>::infinity());
      } else {
        ASSERT_NEAR(products[begin + j], expected[j], 1e-5 * expected[j]);
      }
    }
  }
}

}  // namespace blockmgr
