// UTF-8 in texts of any bytes, compared with the spelling of code points.
#include "engine/tokenizer/utf8.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "tests/testing/random.h"

namespace blockmgr {
namespace {

// Spells a code point by the table of RFC 3629.
std::string Spell(uint32_t code_point) {
  const auto byte = [](uint32_t value) {
    return std::string(1, static_cast<char>(value));
  };
  const auto tail = [&](int shift, uint32_t value) {
    return byte(0x80 | ((value >> shift) & 0x3F));
  };
  if (code_point < 0x80) return byte(code_point);
  if (code_point < 0x800) {
    return byte(0xC0 | (code_point >> 6)) + tail(0, code_point);
  }
  if (code_point < 0x10000) {
    return byte(0xE0 | (code_point >> 12)) + tail(6, code_point) +
           tail(0, code_point);
  }
  return byte(0xF0 | (code_point >> 18)) + tail(12, code_point) +
         tail(6, code_point) + tail(0, code_point);
}

// Returns the length of the character at the beginning of the text, or 0. Takes
// payload bits without a look at the markers around them, and sees whether the
// code point is spelled so.
size_t CharacterLengthBySpelling(absl::string_view text) {
  constexpr uint32_t kFirstMasks[] = {0x7F, 0x1F, 0x0F, 0x07};
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    uint32_t code_point =
        static_cast<uint8_t>(text[0]) & kFirstMasks[length - 1];
    for (size_t i = 1; i < length; ++i) {
      code_point = (code_point << 6) | (static_cast<uint8_t>(text[i]) & 0x3F);
    }
    const bool exists =
        code_point < 0x110000 && (code_point < 0xD800 || code_point >= 0xE000);
    if (exists && Spell(code_point) == text.substr(0, length)) return length;
  }
  return 0;
}

TEST(Utf8Test, FindsInvalidBytes) {
  EXPECT_EQ(ValidPrefix(""), 0u);
  EXPECT_EQ(ValidPrefix("aé€😀"), 10u);
  EXPECT_EQ(ValidPrefix("ab\xFF"
                        "c"),
            2u);
  EXPECT_EQ(ValidPrefix("\xC0\x80"), 0u) << "longer than need be";
  EXPECT_EQ(ValidPrefix("\xED\xA0\x80"), 0u) << "a surrogate";
  EXPECT_EQ(ValidPrefix("\xF4\x90\x80\x80"), 0u) << "above U+10FFFF";
  EXPECT_EQ(ValidPrefix("a\xE2\x82"), 1u) << "cut off";
  EXPECT_EQ(InvalidPrefix("a"), 0u);
  EXPECT_EQ(InvalidPrefix(""), 0u);
  EXPECT_EQ(InvalidPrefix("\xE2\x82"
                          "a"),
            2u);
  EXPECT_EQ(InvalidPrefix("\x80\x80é"), 2u);
  EXPECT_EQ(InvalidPrefix("\xFF"), 1u);
}

TEST(Utf8Test, AgreesWithHowCodePointsAreSpelled) {
  constexpr absl::string_view kBytes =
      "aZ\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF"
      "\xF0\xF1\xF3\xF4\xF5\xFF";
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int length = RandomInt(rng, 0, 8); length > 0; --length) {
      text.push_back(kBytes[static_cast<size_t>(
          RandomInt(rng, 0, static_cast<int32_t>(kBytes.size()) - 1))]);
    }
    size_t valid = 0;
    while (valid < text.size()) {
      const size_t length =
          CharacterLengthBySpelling(absl::string_view(text).substr(valid));
      if (length == 0) break;
      valid += length;
    }
    EXPECT_EQ(ValidPrefix(text), valid) << Quoted(text);
    size_t invalid = 0;
    while (invalid < text.size() &&
           CharacterLengthBySpelling(absl::string_view(text).substr(invalid)) ==
               0) {
      ++invalid;
    }
    EXPECT_EQ(InvalidPrefix(text), invalid) << Quoted(text);
  }
}

TEST(Utf8Test, QuotesTheBeginningOfText) {
  EXPECT_EQ(Quoted("a\n\xFF"), R"("a\n\xff")");
  EXPECT_EQ(Quoted(std::string(64, 'x')),
            absl::StrCat("\"", std::string(64, 'x'), "\""));
  EXPECT_EQ(Quoted(std::string(65, 'x')),
            absl::StrCat("\"", std::string(64, 'x'), "..\""));
}

}  // namespace
}  // namespace blockmgr
