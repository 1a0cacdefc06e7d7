// Small helpers of the engine tests.
#ifndef TESTS_ENGINE_REFERENCE_TEST_UTIL_H_
#define TESTS_ENGINE_REFERENCE_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include "engine/gguf/gguf_file.h"
#include "engine/reference/gguf_model.h"
#include "engine/reference/tiny_model.h"
#include "tests/engine/reference/gguf_reference.h"

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

// The smallest model that device kernels exist for, with a layer for each of
// these windows, to be divided among so many shards.
inline std::shared_ptr<const LanguageModel> SmallDeviceModel(
    int32_t num_shards, const std::vector<int32_t>& windows) {
  return RandomModel(
      ModelShape{.num_layers = static_cast<int32_t>(windows.size()),
                 .num_q_heads = 4 * num_shards,
                 .num_heads = 2 * num_shards,
                 .head_dim = 64,
                 .hidden = 64,
                 .mlp = 128,
                 .vocabulary = 64,
                 .windows = windows},
      7);
}

inline std::vector<int32_t> RandomTokens(int32_t count, int32_t vocabulary,
                                         std::mt19937_64* random) {
  std::uniform_int_distribution<int32_t> token(0, vocabulary - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& drawn : tokens) drawn = token(*random);
  return tokens;
}

// The model of a file, or why it cannot be loaded.
inline absl::StatusOr<std::shared_ptr<const LanguageModel>> LoadSpec(
    const GgufSpec& spec) {
  const std::string bytes = spec.Write();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  if (!file.ok()) return file.status();
  return LoadGgufModel(**file);
}

// Logits of float32 products against those of a model in float64.
inline void ExpectLogits(std::span<const float> logits,
                         const std::vector<double>& expected) {
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    ASSERT_NEAR(logits[i], expected[i], 1e-3) << "logit " << i;
  }
}

// Returns the largest error, relative to the largest logit.
inline double ErrorOf(std::span<const float> logits,
                      const std::vector<double>& expected) {
  EXPECT_EQ(logits.size(), expected.size());
  double largest = 0;
  double error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(expected[i] - double{logits[i]}));
  }
  return error / largest;
}

// A name for a test of a model with these windows.
inline std::string NameOfWindows(const std::vector<int32_t>& windows) {
  return absl::StrCat("Layers_", absl::StrJoin(windows, "_"));
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
