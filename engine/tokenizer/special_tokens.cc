#include "engine/tokenizer/special_tokens.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/string_view.h>

namespace blockmgr {
namespace {

uint8_t ByteAt(absl::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<SpecialToken> tokens) {
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const SpecialToken& a, const SpecialToken& b) {
                     return a.text < b.text;
                   });
  for (SpecialToken& token : tokens) {
    if (token.text.empty()) continue;
    if (!tokens_.empty() && tokens_.back().text == token.text) {
      tokens_.back().token = token.token;
    } else {
      tokens_.push_back(std::move(token));
    }
  }
  size_t next = 0;
  for (size_t byte = 0; byte < first_.size(); ++byte) {
    while (next < tokens_.size() && ByteAt(tokens_[next].text, 0) < byte) {
      ++next;
    }
    first_[byte] = next;
  }
}

const SpecialToken* SpecialTokens::Longest(absl::string_view text) const {
  const SpecialToken* longest = nullptr;
  // Tokens that begin with the first `length` bytes of the text.
  auto low = tokens_.begin() + static_cast<ptrdiff_t>(first_[ByteAt(text, 0)]);
  auto high =
      tokens_.begin() + static_cast<ptrdiff_t>(first_[ByteAt(text, 0) + 1U]);
  for (size_t length = 1; low != high; ++length) {
    // A token comes before those that begin with it.
    if (low->text.size() == length) longest = &*low++;
    if (length == text.size()) break;
    const uint8_t next = ByteAt(text, length);
    low = std::partition_point(low, high, [&](const SpecialToken& token) {
      return ByteAt(token.text, length) < next;
    });
    high = std::partition_point(low, high, [&](const SpecialToken& token) {
      return ByteAt(token.text, length) == next;
    });
  }
  return longest;
}

std::optional<SpecialTokens::Match> SpecialTokens::Find(absl::string_view text,
                                                        size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t i = from; i < text.size(); ++i) {
    const uint8_t byte = ByteAt(text, i);
    if (first_[byte] == first_[byte + 1U]) continue;
    const SpecialToken* token = Longest(text.substr(i));
    if (token != nullptr) {
      return Match{
          .position = i, .length = token->text.size(), .token = token->token};
    }
  }
  return std::nullopt;
}

}  // namespace blockmgr
