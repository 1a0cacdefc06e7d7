#include "scheduler/server/peer_text.h"

#include <cstdint>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

std::string Shorten(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return std::string(text);
  size_t end = kMaxTextBytes;
  // The text is not cut within a character. Bytes of the form 10xxxxxx continue
  // a character.
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), " .. (", text.size(), " bytes)");
}

std::string ForLog(absl::string_view text) {
  return absl::Utf8SafeCHexEscape(Shorten(text));
}

}  // namespace blockmgr
