// Tokenizer turns text to tokens and back: byte-level BPE, as the metadata of a
// GGUF file describes it.
//
//   text      Hello world<|im_end|>
//   special   Hello world        | <|im_end|>     SpecialTokens
//   words     Hello |  world     |                WordSplitter
//   tokens    19556    905         2              BytePairs
//
// Tokens are those of the package `tokenizers` for a text that is UTF-8, with
// these limits: the text is not normalized first (the published tokenizer of
// qwen2 makes it NFC), and which characters are letters, numbers or white space
// is for PCRE2's version of Unicode to say. Bytes that are not UTF-8 are tokens
// like others. A byte for which the vocabulary has no token is left out.
//
// Thread-safe: nothing changes after creation.
#ifndef ENGINE_TOKENIZER_TOKENIZER_H_
#define ENGINE_TOKENIZER_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/byte_pairs.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/word_splitter.h"

namespace blockmgr {

class Tokenizer {
 public:
  // Errs as ReadTokenizerData does, and as the other Create. The file may be
  // closed afterwards.
  static absl::StatusOr<Tokenizer> Create(const GgufFile& file);
  // Errs with InvalidArgument, and names the key, if the words are split by
  // rules that WordSplitter does not have, or if the data contradict each
  // other.
  static absl::StatusOr<Tokenizer> Create(const TokenizerData& data);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  // Returns the tokens of a text of any bytes. User-defined tokens are always
  // found in the text. Control tokens are found if `parse_special`; otherwise
  // their text is text, so that a user cannot write them. No BOS is added.
  // Cost: O(n log n) of the longest word. REQUIRES: text.size() < 2^31.
  std::vector<int32_t> Encode(absl::string_view text, bool parse_special) const;

  // Returns the bytes of the tokens, one after the other. A token that is not
  // in the vocabulary has none. A token may be a part of a character.
  std::string Decode(std::span<const int32_t> tokens) const;

  // Returns the bytes of every token, as in a text that leaves control tokens
  // out: these have none.
  std::vector<std::string> TextsWithoutControl() const;

  int32_t vocabulary_size() const {
    return static_cast<int32_t>(bytes_.size());
  }
  // Returns the token to put before a text, if the model wants one: BOS, if
  // add_bos_token.
  std::optional<int32_t> begin_token() const { return begin_token_; }
  // Returns the tokens that end an answer: EOS and EOT, as far as the file has
  // them.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  // Returns the Jinja text that makes a prompt of messages. Errs with NotFound
  // if the file has none.
  absl::StatusOr<absl::string_view> chat_template() const;

 private:
  struct Buffers;  // of one Encode

  Tokenizer(WordSplitter splitter, BytePairs pairs, SpecialTokens user_defined,
            SpecialTokens special);

  // Adds the normal tokens to words_, as far as they are what their own bytes
  // are encoded to. With `all`, all of them.
  void AddWords(const TokenizerData& data, bool all);
  absl::Status SetEnds(const TokenizerData& data);
  // Append the tokens of text without special tokens, and of a word.
  void EncodeText(absl::string_view text, Buffers* buffers) const;
  void EncodeWord(absl::string_view word, Buffers* buffers) const;

  WordSplitter splitter_;
  BytePairs pairs_;
  SpecialTokens user_defined_;
  SpecialTokens special_;           // user-defined and control
  std::vector<std::string> bytes_;  // by token
  std::vector<int32_t> control_tokens_;
  std::array<int32_t, 256> byte_tokens_;  // kNoToken: the byte is left out
  // Words that are one token.
  absl::flat_hash_map<std::string, int32_t> words_;
  std::optional<int32_t> begin_token_;
  std::vector<int32_t> end_tokens_;
  std::optional<std::string> chat_template_;
};

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_TOKENIZER_H_
