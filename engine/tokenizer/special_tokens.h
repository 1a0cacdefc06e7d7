// SpecialTokens finds tokens in a text that are there as a whole, before the
// text is split into words: "<|im_end|>", for example.
//
// Find takes the leftmost place, and the longest of the tokens there. Texts are
// compared byte by byte.
//
// Thread-safe: nothing changes after construction.
#ifndef ENGINE_TOKENIZER_SPECIAL_TOKENS_H_
#define ENGINE_TOKENIZER_SPECIAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>

namespace blockmgr {

struct SpecialToken {
  std::string text;
  int32_t token;
};

class SpecialTokens {
 public:
  // If several tokens have the same text, the last one counts. A token without
  // text is never found.
  explicit SpecialTokens(std::vector<SpecialToken> tokens);

  struct Match {
    size_t position;
    size_t length;
    int32_t token;
  };
  // Finds the first match at or behind position `from`. Cost of a place where
  // no token begins: O(1); of another place: O(length * log(tokens)).
  std::optional<Match> Find(absl::string_view text, size_t from) const;

 private:
  // Returns the longest token that `text` begins with, or null.
  const SpecialToken* Longest(absl::string_view text) const;

  std::vector<SpecialToken> tokens_;  // sorted by text
  // Tokens that begin with byte b are [first_[b], first_[b + 1]).
  std::array<size_t, 257> first_;
};

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_SPECIAL_TOKENS_H_
