#include "engine/tokenizer/byte_alphabet.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {
namespace {

constexpr uint32_t kNumBytes = 256;
// Code points are below 0x100 + 68.
constexpr uint32_t kNumCodePoints = 324;
constexpr int16_t kSpellsNothing = -1;

struct Alphabet {
  std::array<uint16_t, kNumBytes> code_points;  // by byte
  std::array<int16_t, kNumCodePoints> bytes;    // by code point
};

constexpr bool CanBePrinted(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  for (int16_t& byte : alphabet.bytes) byte = kSpellsNothing;
  uint32_t next = kNumBytes;
  for (uint32_t byte = 0; byte < kNumBytes; ++byte) {
    const uint32_t code_point = CanBePrinted(byte) ? byte : next++;
    alphabet.code_points[byte] = static_cast<uint16_t>(code_point);
    alphabet.bytes[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string SpellByte(uint8_t byte) {
  const uint32_t code_point = kAlphabet.code_points[byte];
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> ReadSpelledBytes(absl::string_view spelled) {
  std::string bytes;
  bytes.reserve(spelled.size());
  for (size_t i = 0; i < spelled.size(); ++i) {
    uint32_t code_point = static_cast<uint8_t>(spelled[i]);
    if (code_point >= 0x80) {
      if (code_point < 0xC2 || code_point > 0xDF || i + 1 == spelled.size()) {
        return std::nullopt;
      }
      const uint32_t next = static_cast<uint8_t>(spelled[++i]);
      if ((next & 0xC0) != 0x80) return std::nullopt;
      code_point = ((code_point & 0x1F) << 6) | (next & 0x3F);
    }
    if (code_point >= kNumCodePoints ||
        kAlphabet.bytes[code_point] == kSpellsNothing) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.bytes[code_point]));
  }
  return bytes;
}

}  // namespace blockmgr
