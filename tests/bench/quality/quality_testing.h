// A model, and prompts, small enough for float64 by hand.
#ifndef TESTS_BENCH_QUALITY_QUALITY_TESTING_H_
#define TESTS_BENCH_QUALITY_QUALITY_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "bench/quality/prompts.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {

// Its tokens are the bytes of a text.
inline std::shared_ptr<const LanguageModel> ByteModel(uint64_t seed) {
  return RandomModel(ModelShape{.num_layers = 2,
                                .num_q_heads = 4,
                                .num_heads = 2,
                                .head_dim = 16,
                                .hidden = 64,
                                .mlp = 128,
                                .vocabulary = 256},
                     seed);
}

inline std::vector<int32_t> BytesOf(absl::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

inline std::string TextOf(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

// Forty paragraphs of four sentences.
inline Filler SmallFiller() {
  constexpr absl::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  std::string text;
  for (size_t i = 0; i < 40; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      absl::StrAppend(&text, "Sentence ",
                      kLetters.substr(i % kLetters.size(), 1),
                      kLetters.substr(j, 1),
                      " of the filler says nothing that anybody asks for. ");
    }
    text.pop_back();
    absl::StrAppend(&text, "\n\n");
  }
  Filler filler;
  filler.Add(text);
  return filler;
}

inline PromptSource ByteSource() {
  return {.filler = SmallFiller(),
          .chat = {.head = BytesOf("<S>"),
                   .close = BytesOf("</U><A>"),
                   .next = BytesOf("</A><U>")},
          .encode = BytesOf};
}

inline std::vector<int32_t> RandomBytes(int32_t count,
                                        std::mt19937_64* random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>((*random)() % 256);
  }
  return tokens;
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_QUALITY_QUALITY_TESTING_H_
