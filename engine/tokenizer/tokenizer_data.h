// TokenizerData: the tokenizer's part of a GGUF file, as plain data.
#ifndef ENGINE_TOKENIZER_TOKENIZER_DATA_H_
#define ENGINE_TOKENIZER_TOKENIZER_DATA_H_

#include <cstdint>
#include <optional>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "engine/gguf/gguf_file.h"

namespace blockmgr {

// Types of tokens (token_type). A normal token is spelled in the byte alphabet.
inline constexpr int64_t kNormalToken = 1;
inline constexpr int64_t kControlToken = 3;
inline constexpr int64_t kUserDefinedToken = 4;

// The data of byte-level BPE. A field has the name of its key behind
// "tokenizer.ggml.", but for the chat template. Texts are borrowed.
struct TokenizerData {
  absl::string_view pre;  // how text is split into words
  std::vector<absl::string_view> tokens;
  std::vector<int64_t> token_type;        // by token
  std::vector<absl::string_view> merges;  // "LEFT RIGHT", by rank
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> eot_token_id;
  std::optional<bool> add_bos_token;
  std::optional<absl::string_view> chat_template;  // tokenizer.chat_template
};

// Reads the metadata. The texts live as long as the file. Errs with
// InvalidArgument if the tokenizer is not byte-level BPE, and as GgufFile does
// if a key of the first four is missing or if the type of a value is wrong.
absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufFile& file);

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_TOKENIZER_DATA_H_
