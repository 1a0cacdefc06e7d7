#include "engine/reference/stop_strings.h"

#include <algorithm>
#include <cstddef>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

namespace blockmgr {
namespace {

absl::string_view TextOf(const TokenTexts& texts, int32_t token) {
  const auto index = static_cast<size_t>(token);
  return token >= 0 && index < texts.size() ? absl::string_view(texts[index])
                                            : absl::string_view();
}

}  // namespace

std::optional<int32_t> FindStop(const TokenTexts& texts,
                                std::span<const int32_t> outputs, int32_t token,
                                std::span<const std::string> stop) {
  const absl::string_view last = TextOf(texts, token);
  if (stop.empty() || last.empty()) return std::nullopt;
  size_t longest = 0;
  for (const std::string& one : stop) longest = std::max(longest, one.size());
  size_t first = outputs.size();
  size_t before = 0;  // bytes of the text before that of `token`
  while (first > 0 && before + 1 < longest) {
    before += TextOf(texts, outputs[--first]).size();
  }
  std::string text;
  text.reserve(before + last.size());
  for (const int32_t output : outputs.subspan(first)) {
    absl::StrAppend(&text, TextOf(texts, output));
  }
  absl::StrAppend(&text, last);
  for (size_t i = 0; i < stop.size(); ++i) {
    // A string that begins here, or later, ends in the last token's text.
    const size_t begin = before - std::min(before, stop[i].size() - 1);
    if (text.find(stop[i], begin) != std::string::npos) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

}  // namespace blockmgr
