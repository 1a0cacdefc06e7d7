#include "bench/evict/model_run.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_model.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

// With a window, so that there are two layer groups.
const ModelShape kRunShape = {.num_layers = 4,
                              .num_q_heads = 4,
                              .num_heads = 2,
                              .head_dim = 16,
                              .hidden = 64,
                              .mlp = 64,
                              .vocabulary = 64,
                              .windows = {24, 0}};

std::vector<int32_t> Tokens(int32_t count, int32_t seed) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back((i * i + seed * 7 + i / 3) % kRunShape.vocabulary);
  }
  return tokens;
}

TEST(ModelRunTest, NextTokensAreTheReferences) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kRunShape, 3);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelRun> run,
                       ModelRun::Create(model.get(), 100));
  DenseReference reference(model.get());
  for (const int32_t count : {1, 50, 7, 30}) {
    const std::vector<int32_t> tokens = Tokens(count, count);
    EXPECT_EQ(run->Extend(tokens), Argmax(reference.Forward(tokens)));
    EXPECT_EQ(run->length(), reference.length());
  }
}

TEST(ModelRunTest, TruncateForgetsWhatFollows) {
  const std::shared_ptr<const LanguageModel> model = RandomModel(kRunShape, 3);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelRun> run,
                       ModelRun::Create(model.get(), 64));
  run->Extend(Tokens(40, 1));
  std::vector<std::vector<float>> keys;
  for (int32_t seed = 2; seed <= 3; ++seed) {
    run->Extend(Tokens(24, seed));
    run->Truncate(40);
    std::vector<float> last;
    run->Extend(Tokens(10, 9),
                [&](int32_t, int32_t first, const ModelForward& forward) {
                  EXPECT_EQ(first, 40);
                  last.assign(forward.keys().begin(), forward.keys().end());
                });
    run->Truncate(40);
    keys.push_back(last);
  }
  EXPECT_EQ(keys[0], keys[1]);
}

}  // namespace
}  // namespace blockmgr
