#include "engine/tokenizer/utf8.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

namespace blockmgr {
namespace {

constexpr size_t kMaxQuoted = 64;

// Returns the length of the character that the text begins with, or 0 if none
// does. REQUIRES: the text is not empty.
size_t CharacterLength(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  const auto second = static_cast<uint8_t>(text[1]);
  // E0 and F0 go on with what a shorter character could not say, ED before the
  // surrogates, F4 before U+110000.
  const uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (second < lowest || second > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

size_t ValidPrefix(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t length = CharacterLength(text.substr(end));
    if (length == 0) break;
    end += length;
  }
  return end;
}

size_t InvalidPrefix(absl::string_view text) {
  size_t end = 0;
  while (end < text.size() && CharacterLength(text.substr(end)) == 0) ++end;
  return end;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuoted)),
                      text.size() > kMaxQuoted ? "..\"" : "\"");
}

}  // namespace blockmgr
