#include "bench/evict/model_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/calibration_prompts.h"
#include "bench/evict/tensors.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

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
// 5 tokens of question, then 4 of answer.
constexpr int32_t kContext = 40;

ContextPrompt Prompt() {
  CalibrationPromptOptions options;
  options.seed = 5;
  options.context_tokens = kContext;
  options.num_queries = 3;
  options.query_tokens = 9;
  return MakeRandomPrompt(kShape.vocabulary, 0, options);
}

ModelOracle Measure(const LanguageModel& model, ThreadPool* threads = nullptr) {
  absl::StatusOr<ModelOracle> oracle = MeasureOracle(model, Prompt(), threads);
  EXPECT_THAT(oracle, IsOk());
  return *std::move(oracle);
}

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
  const int32_t context = kContext;
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

TEST(ModelOracleTest, AgreesWithTheDenseReference) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kShape, 5);
  const ModelOracle oracle = Measure(*model);
  ASSERT_THAT(oracle.queries, SizeIs(3));
  auto measured = oracle.importances.begin();
  for (const std::vector<int32_t>& query : oracle.queries) {
    ASSERT_THAT(query, SizeIs(9));
    DenseReference reference(model.get());
    reference.Forward(Prompt().context);
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

TEST(ModelOracleTest, TensorsAreTheContextsByHead) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kShape, 5);
  const ModelOracle oracle = Measure(*model);
  DenseReference reference(model.get());
  reference.Forward(Prompt().context);
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

TEST(ModelOracleTest, ThreadsChangeNothing) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kShape, 5);
  ThreadPool threads(2);
  const ModelOracle one = Measure(*model);
  const ModelOracle two = Measure(*model, &threads);
  EXPECT_EQ(one.importances, two.importances);
  EXPECT_EQ(one.queries, two.queries);
  EXPECT_EQ(one.tensors.layers[2].keys, two.tensors.layers[2].keys);
}

// Three chunks, each behind the whole context.
TEST(ModelOracleTest, ReplayScoresAreTheLargestAttention) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kShape, 5);
  const std::vector<int32_t> context = Prompt().context;
  const ReplayPrompts prompts = {
      .whole = {1, 2}, .part = {3}, .chunk_tokens = 16};
  ASSERT_OK_AND_ASSIGN(const std::vector<std::vector<float>> scores,
                       MeasureReplayScores(*model, context, prompts));
  std::vector<std::vector<double>> best(
      3, std::vector<double>(static_cast<size_t>(2 * kContext)));
  for (int32_t begin = 0; begin < kContext; begin += 16) {
    DenseReference reference(model.get());
    reference.Forward(context);
    std::vector<int32_t> query = prompts.whole;
    if (begin > 0) query = prompts.part;
    for (int32_t i = std::max(begin - 8, 0); i < std::min(begin + 16, kContext);
         ++i) {
      query.push_back(context[static_cast<size_t>(i)]);
    }
    reference.Forward(query);
    for (int32_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (int32_t step = kContext; step < reference.length(); ++step) {
        for (int32_t q_head = 0; q_head < kShape.num_q_heads; ++q_head) {
          std::vector<double> weights;
          double sum = 0.0;
          for (int32_t j = 0; j <= step; ++j) {
            weights.push_back(
                std::exp(Dot(reference.Query(layer, q_head, step),
                             reference.Key(layer, q_head / 2, j)) /
                         4.0));
            sum += weights.back();
          }
          for (int32_t j = 0; j < kContext; ++j) {
            double& value = best[static_cast<size_t>(layer)]
                                [static_cast<size_t>(q_head) / 2 * kContext +
                                 static_cast<size_t>(j)];
            value = std::max(value, weights[static_cast<size_t>(j)] / sum);
          }
        }
      }
    }
  }
  for (size_t layer = 0; layer < best.size(); ++layer) {
    ASSERT_EQ(scores[layer].size(), best[layer].size());
    for (size_t i = 0; i < best[layer].size(); ++i) {
      ASSERT_NEAR(scores[layer][i], best[layer][i], 1e-5);
    }
  }
}

TEST(ModelOracleTest, TensorsHaveTheModelsRotationAndScale) {
  ModelShape shape = kShape;
  shape.rotary = {.theta = 500.0, .divisors = {1, 1, 1, 2, 2, 4, 8, 8}};
  shape.score_scale = 0.125f;
  const std::shared_ptr<const LanguageModel> model = RandomModel(shape, 5);
  ASSERT_OK_AND_ASSIGN(const Tensors tensors,
                       MeasureTensors(*model, Prompt().context));
  EXPECT_EQ(tensors.AttentionScale(), 0.125f);
  ASSERT_THAT(tensors.inverse_frequencies, SizeIs(8));
  EXPECT_DOUBLE_EQ(tensors.inverse_frequencies[4], std::pow(500.0, -0.5) / 2.0);
  EXPECT_EQ(tensors.layers[1].values, Measure(*model).tensors.layers[1].values);
}

TEST(ModelOracleTest, RefusesWindows) {
  ModelShape shape = kShape;
  EXPECT_THAT(CheckNoWindows("--model", *RandomModel(shape, 1)), IsOk());
  shape.windows = {0, 32, 0};
  EXPECT_THAT(CheckNoWindows("--model", *RandomModel(shape, 1)),
              IsInvalid("--model: expected", "layer 1 has a window of 32"));
}

}  // namespace
}  // namespace blockmgr
