#include "bench/evict/key_volume.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

std::vector<float> RandomKeys(int32_t count, int32_t head_dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> keys(static_cast<size_t>(count) * head_dim);
  for (float& value : keys) {
    value = static_cast<float>(
        static_cast<double>(random() >> 11) / 9007199254740992.0 - 0.3);
  }
  return keys;
}

// ln |det(I + C)|, C the cosines of all pairs of kept keys, by Gaussian
// elimination with pivots.
double ByCosines(const std::vector<float>& keys, size_t head_dim,
                 const std::vector<int32_t>& kept) {
  const auto dot = [&](int32_t a, int32_t b) {
    double sum = 0.0;
    for (size_t d = 0; d < head_dim; ++d) {
      sum += double{keys[static_cast<size_t>(a) * head_dim + d]} *
             double{keys[static_cast<size_t>(b) * head_dim + d]};
    }
    return sum;
  };
  const size_t size = kept.size();
  std::vector<std::vector<double>> rows(size, std::vector<double>(size));
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      rows[i][j] = dot(kept[i], kept[j]) /
                   std::sqrt(dot(kept[i], kept[i]) * dot(kept[j], kept[j]));
    }
    rows[i][i] += 1.0;
  }
  double sum = 0.0;
  for (size_t i = 0; i < size; ++i) {
    size_t pivot = i;
    for (size_t j = i; j < size; ++j) {
      if (std::abs(rows[j][i]) > std::abs(rows[pivot][i])) pivot = j;
    }
    std::swap(rows[i], rows[pivot]);
    sum += std::log(std::abs(rows[i][i]));
    for (size_t j = i + 1; j < size; ++j) {
      const double factor = rows[j][i] / rows[i][i];
      for (size_t k = i; k < size; ++k) rows[j][k] -= factor * rows[i][k];
    }
  }
  return sum;
}

TEST(KeyVolumeTest, IsThatOfTheCosinesOfAllPairs) {
  constexpr int32_t kHeadDim = 8;
  constexpr uint64_t kSeed = 5;
  const std::vector<float> keys = RandomKeys(40, kHeadDim, kSeed);
  // Fewer keys than dimensions, and more.
  for (const int32_t count : {1, 3, 8, 9, 40}) {
    std::vector<int32_t> kept(count);
    for (int32_t i = 0; i < count; ++i) kept[i] = i * 7 % 40;
    EXPECT_NEAR(KeyLogDeterminant(keys, kHeadDim, kept),
                ByCosines(keys, kHeadDim, kept), 1e-9)
        << count << " keys, seed " << kSeed;
  }
}

TEST(KeyVolumeTest, KeysAtRightAnglesAndEqualOnes) {
  // Three axes, one of them twice and longer, and nothing.
  const std::vector<float> keys = {2,   0, 0, 0, 0, 3, 0, 0, 0, 0,
                                   0.5, 0, 9, 0, 0, 0, 0, 0, 0, 0};
  const double ln2 = std::log(2.0);
  const std::vector<int32_t> axes = {0, 1, 2};
  const std::vector<int32_t> equal = {0, 3};
  const std::vector<int32_t> zero = {4};
  EXPECT_EQ(KeyLogDeterminant(keys, 4, {}), 0.0);
  EXPECT_NEAR(KeyLogDeterminant(keys, 4, axes), 3 * ln2, 1e-12);
  EXPECT_NEAR(KeyLogDeterminant(keys, 4, equal), std::log(3.0), 1e-12);
  EXPECT_EQ(KeyLogDeterminant(keys, 4, zero), 0.0);
}

TEST(KeyVolumeTest, TheMeanIsOverLayersAndHeads) {
  Tensors tensors;
  tensors.num_heads = 2;
  tensors.length = 10;
  tensors.head_dim = 4;
  tensors.layers.resize(2);
  for (size_t layer = 0; layer < 2; ++layer) {
    tensors.layers[layer].keys = RandomKeys(20, 4, 6 + layer);
  }
  KeepSets keep;
  keep.offsets = {0, 3, 5, 5, 9};
  keep.ranks = {0, 4, 9, 2, 3, 1, 5, 6, 7};
  double sum = 0.0;
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<float>& keys = tensors.layers[i / 2].keys;
    const auto half = keys.begin() + (i % 2 == 0 ? 0 : 40);
    sum += ByCosines({half, half + 40}, 4,
                     {keep.ranks.begin() + keep.offsets[i],
                      keep.ranks.begin() + keep.offsets[i + 1]});
  }
  EXPECT_NEAR(MeanKeyLogDeterminant(keep, tensors), sum / 4, 1e-9);
}

}  // namespace
}  // namespace blockmgr
