#include "engine/reference/tiny_model.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

TEST(ModelShapeTest, AcceptsTheDefault) { EXPECT_OK(ModelShape().Validate()); }

TEST(ModelShapeTest, NamesTheBadField) {
  const auto refuses = [](const ModelShape& shape, const char* field) {
    EXPECT_THAT(shape.Validate(), IsInvalid(field));
  };
  refuses({.num_layers = 0}, "num_layers");
  refuses({.num_q_heads = 7}, "num_q_heads");
  refuses({.num_heads = 0}, "num_heads");
  refuses({.head_dim = 24}, "head_dim");
  refuses({.hidden = 100}, "hidden");
  refuses({.mlp = 1 << 20}, "mlp");
  refuses({.vocabulary = 0}, "vocabulary");
  refuses({.rotary = {.theta = NAN}}, "rotary.theta");
  refuses({.window_rotary = {.divisors = {1.0f}}}, "window_rotary.divisors");
  refuses({.head_dim = 16, .rotary = {.divisors = std::vector<float>(8)}},
          "rotary.divisors");
  refuses({.num_layers = 1, .windows = {0, 16}}, "windows");
  refuses({.windows = {-1}}, "windows");
}

TEST(ModelShapeTest, WindowsAreRepeatedOverTheLayers) {
  const ModelShape shape{.num_layers = 5, .windows = {64, 0}};
  EXPECT_OK(shape.Validate());
  const ModelLayout layout = MakeLayout(shape, 16, DType::kFloat32, 10);
  EXPECT_OK(layout.Validate());
  EXPECT_EQ(layout.num_layers, 2);
  EXPECT_EQ(layout.window, 0);
  EXPECT_THAT(layout.group_windows, ElementsAre(64, 64));
  EXPECT_EQ(shape.Groups().layers[4].group, 2);
  const ModelShape sliding{.num_layers = 3, .windows = {32}};
  EXPECT_EQ(MakeLayout(sliding, 16, DType::kFloat32, 10).window, 32);
}

// From an independent program: SplitMix64 in Python, floats by struct.
TEST(LanguageModelTest, WeightsAreThoseOfThePortableGenerator) {
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(ModelShape(), 1);
  const ModelWeights& weights = model->weights();
  std::vector<float> row(256);
  weights.embedding.UnpackRow(0, row);
  EXPECT_FLOAT_EQ(row[0], 1.15133201f);
  weights.embedding.UnpackRow(255, row);
  EXPECT_FLOAT_EQ(row[255], 1.60003693f);
  EXPECT_FLOAT_EQ(weights.layers[0].attention_norm[0], 1.02263072f);
  weights.layers[1].query.UnpackRow(17, row);
  EXPECT_FLOAT_EQ(row[0], 0.037745811f);
}

TEST(LanguageModelTest, SeedsDiffer) {
  EXPECT_NE(DenseMatrix(RandomModel(ModelShape(), 1)->weights().head),
            DenseMatrix(RandomModel(ModelShape(), 2)->weights().head));
}

TEST(LanguageModelTest, TokensBeyondTheVocabularyWrap) {
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(ModelShape(), 1);
  EXPECT_EQ(model->EmbeddingRow(3), 3);
  EXPECT_EQ(model->EmbeddingRow(256 + 3), 3);
}

// Evictions must matter, and greedy choices must not hang on rounding.
TEST(LanguageModelTest, AttendsFewTokensAndSpreadsItsLogits) {
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(ModelShape(), 1);
  std::mt19937_64 random(5);
  DenseReference reference(model.get());
  double margin = 0;
  int32_t tight = 0;
  for (const int32_t token : RandomTokens(96, 256, &random)) {
    std::vector<double> logits = reference.Forward(token);
    std::sort(logits.rbegin(), logits.rend());
    margin += (logits[0] - logits[1]) / 96;
    tight += logits[0] - logits[1] < 1e-3 ? 1 : 0;
  }
  EXPECT_GT(margin, 0.3);
  EXPECT_EQ(tight, 0);
  // Effective number of tokens attended, exp(entropy), over heads and layers.
  double effective = 0;
  for (int32_t layer = 0; layer < 4; ++layer) {
    for (int32_t q_head = 0; q_head < 8; ++q_head) {
      double sum = 0;
      double weighted = 0;
      for (int32_t p = 0; p < 96; ++p) {
        double logit = 0;
        for (size_t d = 0; d < 32; ++d) {
          logit += reference.Query(layer, q_head, 95)[d] *
                   reference.Key(layer, q_head / 4, p)[d] / std::sqrt(32.0);
        }
        sum += std::exp(logit);
        weighted += std::exp(logit) * logit;
      }
      effective += std::exp(std::log(sum) - weighted / sum) / 32;
    }
  }
  EXPECT_LT(effective, 24.0);
}

}  // namespace
}  // namespace blockmgr
