#include "bench/evict/tiny_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/dense_reference.h"

namespace blockmgr {
namespace {

using ::testing::SizeIs;

const ModelShape kShape = {.num_layers = 3,
                           .num_q_heads = 4,
                           .num_heads = 2,
                           .head_dim = 16,
                           .hidden = 64,
                           .mlp = 64,
                           .vocabulary = 64};
constexpr TinyOracleOptions kOptions = {
    .seed = 5, .context_tokens = 40, .num_queries = 3, .query_tokens = 9};

double Dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// || v W_O ||_2 of one query head.
double ProjectedSize(const std::vector<float>& output, int32_t q_head,
                     std::span<const double> value) {
  double squares = 0.0;
  for (int32_t m = 0; m < kShape.hidden; ++m) {
    double sum = 0.0;
    for (int32_t d = 0; d < kShape.head_dim; ++d) {
      const int32_t row = q_head * kShape.head_dim + d;
      sum +=
          value[static_cast<size_t>(d)] *
          double{output[static_cast<size_t>(int64_t{row} * kShape.hidden + m)]};
    }
    squares += sum * sum;
  }
  return std::sqrt(squares);
}

// [KV heads, context] of one layer, of the positions from the context's end on.
std::vector<double> NaiveImportances(const LanguageModel& model,
                                     const DenseReference& reference,
                                     int32_t layer) {
  const int32_t context = kOptions.context_tokens;
  const std::vector<float> output =
      DenseMatrix(model.weights().layers[static_cast<size_t>(layer)].output);
  std::vector<double> all(static_cast<size_t>(kShape.num_heads * context));
  for (int32_t step = context; step < reference.length(); ++step) {
    for (int32_t q_head = 0; q_head < kShape.num_q_heads; ++q_head) {
      const int32_t head = q_head / 2;
      std::vector<double> attention;
      double sum = 0.0;
      for (int32_t j = 0; j <= step; ++j) {
        attention.push_back(std::exp(Dot(reference.Query(layer, q_head, step),
                                         reference.Key(layer, head, j)) /
                                     4.0));
        sum += attention.back();
      }
      for (int32_t j = 0; j < context; ++j) {
        double& best = all[static_cast<size_t>(int64_t{head} * context + j)];
        best = std::max(
            best,
            attention[static_cast<size_t>(j)] / sum *
                ProjectedSize(output, q_head, reference.Value(layer, head, j)));
      }
    }
  }
  const double total = std::accumulate(all.begin(), all.end(), 0.0);
  for (double& importance : all) importance /= total;
  return all;
}

TEST(TinyOracleTest, AgreesWithTheDenseReference) {
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(kShape, kOptions.seed);
  const TinyOracle oracle = MeasureTinyOracle(kShape, kOptions);
  ASSERT_THAT(oracle.context, SizeIs(40));
  ASSERT_THAT(oracle.queries, SizeIs(3));
  auto measured = oracle.importances.begin();
  for (const std::vector<int32_t>& query : oracle.queries) {
    ASSERT_THAT(query, SizeIs(9));
    DenseReference reference(model.get());
    reference.Forward(oracle.context);
    // 5 tokens of question, then greedy decoding.
    int32_t best = -1;
    for (size_t i = 0; i < query.size(); ++i) {
      if (i >= 5) {
        EXPECT_EQ(query[i], best) << "token " << i;
      }
      best = Argmax(reference.Forward(query[i]));
    }
    for (int32_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (const double importance :
           NaiveImportances(*model, reference, layer)) {
        ASSERT_NEAR(*measured++, importance, 1e-6 + 1e-4 * importance)
            << "layer " << layer;
      }
    }
  }
  EXPECT_EQ(measured, oracle.importances.end());
}

TEST(TinyOracleTest, QuestionsArePassagesOfTheContext) {
  const TinyOracle oracle = MeasureTinyOracle(kShape, kOptions);
  for (const std::vector<int32_t>& query : oracle.queries) {
    EXPECT_NE(std::search(oracle.context.begin(), oracle.context.end(),
                          query.begin(), query.begin() + 5),
              oracle.context.end());
  }
}

TEST(TinyOracleTest, TensorsAreTheContextsByHead) {
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(kShape, kOptions.seed);
  const TinyOracle oracle = MeasureTinyOracle(kShape, kOptions);
  DenseReference reference(model.get());
  reference.Forward(oracle.context);
  const Tensors& tensors = oracle.tensors;
  EXPECT_EQ(tensors.num_q_heads, 4);
  EXPECT_EQ(tensors.num_heads, 2);
  EXPECT_EQ(tensors.length, 40);
  EXPECT_EQ(tensors.head_dim, 16);
  EXPECT_EQ(tensors.model_dim, 64);
  ASSERT_EQ(tensors.num_layers(), 3);
  const auto expect_row = [](const std::vector<float>& rows, int32_t head,
                             int32_t position,
                             std::span<const double> expected) {
    for (size_t d = 0; d < expected.size(); ++d) {
      const size_t row = static_cast<size_t>(int64_t{head} * 40 + position);
      ASSERT_NEAR(rows[row * expected.size() + d], expected[d], 1e-3);
    }
  };
  for (int32_t layer = 0; layer < 3; ++layer) {
    const LayerTensors& got = tensors.layers[static_cast<size_t>(layer)];
    ASSERT_THAT(got.queries, SizeIs(4 * 40 * 16));
    ASSERT_THAT(got.raw_queries, SizeIs(4 * 40 * 16));
    ASSERT_THAT(got.keys, SizeIs(2 * 40 * 16));
    ASSERT_THAT(got.values, SizeIs(2 * 40 * 16));
    EXPECT_EQ(got.output_projection,
              DenseMatrix(
                  model->weights().layers[static_cast<size_t>(layer)].output));
    for (int32_t position = 0; position < 40; ++position) {
      for (int32_t head = 0; head < 4; ++head) {
        expect_row(got.queries, head, position,
                   reference.Query(layer, head, position));
        expect_row(got.raw_queries, head, position,
                   reference.RawQuery(layer, head, position));
      }
      for (int32_t head = 0; head < 2; ++head) {
        expect_row(got.keys, head, position,
                   reference.Key(layer, head, position));
        expect_row(got.values, head, position,
                   reference.Value(layer, head, position));
      }
    }
  }
}

TEST(TinyOracleTest, EqualArgumentsGiveEqualOracles) {
  EXPECT_EQ(MeasureTinyOracle(kShape, kOptions).importances,
            MeasureTinyOracle(kShape, kOptions).importances);
  TinyOracleOptions other = kOptions;
  other.seed = 6;
  EXPECT_NE(MeasureTinyOracle(kShape, other).importances,
            MeasureTinyOracle(kShape, kOptions).importances);
  TinyOracleOptions second = kOptions;
  second.context = 1;
  EXPECT_NE(MeasureTinyOracle(kShape, second).context,
            MeasureTinyOracle(kShape, kOptions).context);
}

}  // namespace
}  // namespace blockmgr
