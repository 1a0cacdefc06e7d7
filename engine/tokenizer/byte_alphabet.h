// The byte alphabet: how vocabularies of byte-level BPE spell bytes.
//
// Each byte is spelled as one character that can be printed. The bytes 0x21 to
// 0x7E, 0xA1 to 0xAC and 0xAE to 0xFF are spelled as the code points of the
// same number. The other 68 bytes are spelled, in ascending order, as U+0100,
// U+0101 and so on. A space, for example, is spelled U+0120.
#ifndef ENGINE_TOKENIZER_BYTE_ALPHABET_H_
#define ENGINE_TOKENIZER_BYTE_ALPHABET_H_

#include <cstdint>
#include <optional>
#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {

// Returns how the byte is spelled, in UTF-8.
std::string SpellByte(uint8_t byte);

// Returns the bytes that `spelled` stands for. Returns nothing if a character
// of it spells no byte.
std::optional<std::string> ReadSpelledBytes(absl::string_view spelled);

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_BYTE_ALPHABET_H_
