// GgufReference: the language model of a GGUF file in float64, as the papers
// and the format define it. It reads tensors by name as the file has them, and
// keeps one dense cache. It shares no code with the engine: what the engine
// computes from the file is compared with it.
#ifndef TESTS_ENGINE_REFERENCE_GGUF_REFERENCE_H_
#define TESTS_ENGINE_REFERENCE_GGUF_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/gguf/tensor_type.h"

namespace blockmgr {

// A tensor of a file, and the values that its bytes stand for.
struct SpecTensor {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

// The keys and tensors of a file.
struct GgufSpec {
  std::map<std::string,
           std::variant<uint32_t, float, std::string, std::vector<int32_t>,
                        std::vector<uint64_t>>>
      keys;
  std::map<std::string, SpecTensor> tensors;

  // Writes the file.
  std::string Write() const;
};

struct SpecSizes {
  int32_t num_layers = 2;
  int32_t hidden = 256;
  int32_t mlp = 256;
  int32_t vocabulary = 96;
  int32_t num_q_heads = 4;
  int32_t num_heads = 2;
  int32_t head_dim = 64;
};

// Returns the sizes of an architecture's usual test file.
SpecSizes SizesOf(const std::string& architecture);

// A file of a small model with random weights, all its matrices of one type.
// `architecture` is llama (with rope_freqs and an output matrix), qwen2 or
// gemma3 (every sixth layer without a window).
GgufSpec RandomSpec(const std::string& architecture, TensorType type,
                    uint64_t seed, const SpecSizes& sizes);
inline GgufSpec RandomSpec(const std::string& architecture, TensorType type,
                           uint64_t seed) {
  return RandomSpec(architecture, type, seed, SizesOf(architecture));
}

// Returns the logits after each of the tokens, [tokens][vocabulary]. REQUIRES:
// the spec is one of RandomSpec, perhaps with other values.
std::vector<std::vector<double>> ReferenceLogits(
    const GgufSpec& spec, std::span<const int32_t> tokens);

}  // namespace blockmgr

#endif  // TESTS_ENGINE_REFERENCE_GGUF_REFERENCE_H_
