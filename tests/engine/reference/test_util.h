// Small helpers of the engine tests.
#ifndef TESTS_ENGINE_REFERENCE_TEST_UTIL_H_
#define TESTS_ENGINE_REFERENCE_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "engine/reference/tiny_model.h"

namespace blockmgr {

// A model small enough for float64 by hand.
inline std::shared_ptr<const LanguageModel> SmallModel(uint64_t seed) {
  return RandomModel(ModelShape{.num_layers = 2,
                                .num_q_heads = 4,
                                .num_heads = 2,
                                .head_dim = 16,
                                .hidden = 64,
                                .mlp = 128,
                                .vocabulary = 64},
                     seed);
}

// As small, with a layer for each of these windows.
inline std::shared_ptr<const LanguageModel> SmallWindowModel(
    uint64_t seed, const std::vector<int32_t>& windows) {
  return RandomModel(
      ModelShape{.num_layers = static_cast<int32_t>(windows.size()),
                 .num_q_heads = 4,
                 .num_heads = 2,
                 .head_dim = 16,
                 .hidden = 64,
                 .mlp = 128,
                 .vocabulary = 64,
                 .windows = windows},
      seed);
}

inline std::vector<int32_t> RandomTokens(int32_t count, int32_t vocabulary,
                                         std::mt19937_64* random) {
  std::uniform_int_distribution<int32_t> token(0, vocabulary - 1);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(token(*random));
  return tokens;
}

// Cuts `total` into random positive parts.
inline std::vector<int32_t> RandomSplit(int32_t total, int32_t max_part,
                                        std::mt19937_64* random) {
  std::vector<int32_t> parts;
  while (total > 0) {
    std::uniform_int_distribution<int32_t> part(1, std::min(total, max_part));
    parts.push_back(part(*random));
    total -= parts.back();
  }
  return parts;
}

}  // namespace blockmgr

#endif  // TESTS_ENGINE_REFERENCE_TEST_UTIL_H_
