// Spellings of bytes as the vocabulary of GPT-2 has them.
#include "engine/tokenizer/byte_alphabet.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(ByteAlphabetTest, SpellsBytesAsTheVocabularyOfGpt2) {
  EXPECT_EQ(SpellByte('A'), "A");
  EXPECT_EQ(SpellByte('~'), "~");
  EXPECT_EQ(SpellByte(0x00), "Ā");
  EXPECT_EQ(SpellByte('\t'), "ĉ");
  EXPECT_EQ(SpellByte('\n'), "Ċ");
  EXPECT_EQ(SpellByte(' '), "Ġ");
  EXPECT_EQ(SpellByte(0x7F), "ġ");
  EXPECT_EQ(SpellByte(0xA0), "ł");
  EXPECT_EQ(SpellByte(0xA1), "¡");
  EXPECT_EQ(SpellByte(0xAD), "Ń");
  EXPECT_EQ(SpellByte(0xE2), "â");
  EXPECT_EQ(SpellByte(0xFF), "ÿ");
}

TEST(ByteAlphabetTest, ReadsWhatItSpells) {
  std::string all_bytes;
  std::string all_spelled;
  std::set<std::string> different;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = SpellByte(static_cast<uint8_t>(byte));
    different.insert(spelled);
    all_spelled += spelled;
    all_bytes.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(different.size(), 256u);
  EXPECT_EQ(ReadSpelledBytes(all_spelled), all_bytes);
  EXPECT_EQ(ReadSpelledBytes(""), "");
}

TEST(ByteAlphabetTest, RefusesCharactersThatSpellNoByte) {
  for (const char* spelled :
       {" ", "\n", "\x7F", "a b", "\u00A0", "\u00AD", "\u0144", "€", "\x80",
        "Ġ\xC4", "\xC4Ġ", "\xC0\xA1", "\xFF", "\xC4\x20"}) {
    EXPECT_EQ(ReadSpelledBytes(spelled), std::nullopt) << spelled;
  }
}

}  // namespace
}  // namespace blockmgr
