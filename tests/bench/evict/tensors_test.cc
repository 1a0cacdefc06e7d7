#include "bench/evict/tensors.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "tests/bench/evict/naive_attention.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class LoadTensorsTest : public ::testing::Test {
 protected:
  // A file of 0, 1, 2, ..
  std::string Count(const std::string& name, std::vector<int64_t> shape) {
    NpyArray array;
    array.shape = std::move(shape);
    int64_t size = 1;
    for (const int64_t dim : array.shape) size *= dim;
    array.values.resize(static_cast<size_t>(size));
    std::iota(array.values.begin(), array.values.end(), 0.0f);
    EXPECT_THAT(WriteNpy(folder_.File(name), array), IsOk());
    return folder_.File(name);
  }
  void ExpectRefused(const TensorPaths& paths, const std::string& file,
                     const std::string& why) {
    EXPECT_THAT(LoadTensors(paths), IsInvalid(file, why));
  }
  TempFolder folder_;
};

TEST_F(LoadTensorsTest, ReadsLayersInTurn) {
  TensorPaths paths;
  paths.queries = Count("q", {2, 4, 3, 2});
  paths.keys = Count("k", {2, 2, 3, 2});
  paths.output_projection = Count("o", {2, 4, 2, 5});
  paths.scores = Count("s", {2, 2, 3});
  ASSERT_OK_AND_ASSIGN(const Tensors tensors, LoadTensors(paths));
  EXPECT_EQ(tensors.num_layers(), 2);
  EXPECT_EQ(tensors.num_q_heads, 4);
  EXPECT_EQ(tensors.num_heads, 2);
  EXPECT_EQ(tensors.length, 3);
  EXPECT_EQ(tensors.head_dim, 2);
  EXPECT_EQ(tensors.model_dim, 5);
  for (const LayerTensors& layer : tensors.layers) {
    EXPECT_THAT(layer.queries, SizeIs(24));
    EXPECT_THAT(layer.raw_queries, SizeIs(0));
    EXPECT_THAT(layer.values, SizeIs(0));
    EXPECT_THAT(layer.output_projection, SizeIs(40));
  }
  EXPECT_THAT(tensors.layers[1].scores, ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(tensors.layers[1].keys.front(), 12);
}

TEST_F(LoadTensorsTest, LayerDimensionIsOptional) {
  TensorPaths paths;
  paths.keys = Count("k", {2, 3, 2});
  paths.values = Count("v", {1, 2, 3, 2});
  ASSERT_OK_AND_ASSIGN(const Tensors tensors, LoadTensors(paths));
  EXPECT_EQ(tensors.num_layers(), 1);
  EXPECT_EQ(tensors.num_q_heads, 2);  // as many as KV heads, for want of others
  EXPECT_EQ(tensors.model_dim, 0);
}

TEST_F(LoadTensorsTest, ScoresAloneAreEnough) {
  TensorPaths paths;
  paths.scores = Count("s", {2, 7});
  ASSERT_OK_AND_ASSIGN(const Tensors tensors, LoadTensors(paths));
  EXPECT_EQ(tensors.num_heads, 2);
  EXPECT_EQ(tensors.length, 7);
  EXPECT_EQ(tensors.head_dim, 0);
}

TEST_F(LoadTensorsTest, RefusesShapesThatDoNotFit) {
  TensorPaths paths;
  EXPECT_THAT(LoadTensors(paths), IsInvalid("got none"));
  paths.keys = Count("k", {2, 2, 3, 4});
  paths.values = Count("v", {2, 2, 5, 4});
  ExpectRefused(paths, "v", "values: positions: expected 3, got 5");
  paths.values = Count("v", {3, 2, 3, 4});
  ExpectRefused(paths, "v", "values: layers: expected 2, got 3");
  paths.values = Count("v", {3, 4});
  ExpectRefused(paths, "v", "values: expected 3 dimensions, or 4");
  paths.values = Count("v", {2, 0, 3, 4});
  ExpectRefused(paths, "v", "values: KV heads: expected 2, got 0");
  paths.values = "";
  paths.queries = Count("q", {2, 3, 3, 4});
  ExpectRefused(paths, "", "query heads: expected a multiple of the 2");
  paths.queries = Count("q", {2, 4, 3, 8});
  ExpectRefused(paths, "k", "keys: head dim: expected 8, got 4");
  paths.keys = "";
  ExpectRefused(paths, "", "expected keys, values or scores");
}

TEST(SyntheticTensorsTest, AreAFunctionOfShapeAndSeed) {
  SyntheticShape shape;
  shape.num_layers = 2;
  shape.length = 50;
  const Tensors a = MakeSyntheticTensors(shape, 1);
  const Tensors b = MakeSyntheticTensors(shape, 1);
  const Tensors c = MakeSyntheticTensors(shape, 2);
  ASSERT_EQ(a.num_layers(), 2);
  EXPECT_EQ(a.layers[1].queries, b.layers[1].queries);
  EXPECT_EQ(a.layers[1].output_projection, b.layers[1].output_projection);
  EXPECT_NE(a.layers[1].keys, c.layers[1].keys);
  EXPECT_NE(a.layers[0].keys, a.layers[1].keys);
}

TEST(SyntheticTensorsTest, HeadsDifferInSharpnessAndLikeTheFirstToken) {
  SyntheticShape shape;
  shape.num_layers = 1;
  shape.num_q_heads = 8;
  shape.num_heads = 4;
  shape.length = 512;
  const Tensors tensors = MakeSyntheticTensors(shape, 3);
  // Mass of the best tenth of the entries, and of the first one.
  std::vector<double> sharpness(8);
  double first = 0;
  for (int32_t q_head = 0; q_head < 8; ++q_head) {
    for (int32_t position = 448; position < 512; ++position) {
      std::vector<double> weights =
          NaiveAttention(tensors, 0, q_head, position);
      first += weights[0] / (8 * 64);
      std::sort(weights.rbegin(), weights.rend());
      sharpness[static_cast<size_t>(q_head)] +=
          std::accumulate(weights.begin(), weights.begin() + 51, 0.0) / 64;
    }
  }
  EXPECT_LT(sharpness.front(), 0.4);
  EXPECT_GT(sharpness.back(), 0.9);
  EXPECT_GT(first, 10.0 / 512);
}

}  // namespace
}  // namespace blockmgr
