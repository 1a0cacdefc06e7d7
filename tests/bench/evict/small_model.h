// A GGUF file with a small random model and a tokenizer whose tokens are
// letters, and a text for it.
#ifndef TESTS_BENCH_EVICT_SMALL_MODEL_H_
#define TESTS_BENCH_EVICT_SMALL_MODEL_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include <absl/strings/str_cat.h>

#include "engine/gguf/tensor_type.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "tests/engine/reference/gguf_reference.h"
#include "tests/testing/gguf_writer.h"

namespace blockmgr {

// Writes a model of an architecture that RandomSpec knows. Its chat format is
// ChatML, whose markers are tokens.
inline void WriteSmallModel(const std::string& path,
                            const std::string& architecture = "llama") {
  std::vector<std::string> tokens;
  for (const char letter : std::string(
           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
           " .,?'$<>|_\n")) {
    tokens.push_back(SpellByte(static_cast<uint8_t>(letter)));
  }
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* marker : {"<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(marker);
    types.push_back(3);
  }
  const GgufSpec spec = RandomSpec(architecture, TensorType::kF32, 7);
  GgufWriter writer;
  for (const auto& [key, value] : spec.keys) {
    const std::string& name = key;
    std::visit([&](const auto& v) { writer.Add(name, v); }, value);
  }
  writer.Add("general.name", "small");
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "gpt-2");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.token_type", types);
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>());
  writer.Add("tokenizer.chat_template", "a loop that writes <|im_start|>");
  for (const auto& [name, tensor] : spec.tensors) {
    writer.AddTensor(name, tensor.type, tensor.shape, tensor.bytes);
  }
  std::ofstream(path, std::ios::binary) << writer.Finish();
}

// Writes sentences with different numbers, about 30 letters each.
inline void WriteSmallText(const std::string& path, int num_sentences) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < num_sentences; ++i) {
    file << absl::StrCat("This is sentence number ", i, ". ");
  }
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_EVICT_SMALL_MODEL_H_
