// Words of texts, as the package `tokenizers` gives them for the published
// expressions.
#include "engine/tokenizer/word_splitter.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tokenizer/utf8.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr const char* kNames[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};

std::vector<absl::string_view> Split(absl::string_view name,
                                     absl::string_view text) {
  std::vector<absl::string_view> words;
  const auto splitter = WordSplitter::Create(name);
  EXPECT_OK(splitter);
  if (splitter.ok()) splitter->Split(text, &words);
  return words;
}

struct Example {
  const char* text;
  std::vector<absl::string_view> words[4];  // in the order of kNames
};

std::vector<Example> Examples() {
  return {
      {"It's WE'LL don't",
       {{"It", "'s", " WE", "'", "LL", " don", "'t"},
        {"It", "'s", " WE", "'", "LL", " don", "'t"},
        {"It", "'s", " WE", "'LL", " don", "'t"},
        {"It", "'s", " WE", "'LL", " don", "'t"}}},
      {"a  b   ",
       {{"a", " ", " b", "   "},
        {"a", " ", " b", "   "},
        {"a", " ", " b", "   "},
        {"a", " ", " b", "   "}}},
      {"in 12345 days",
       {{"in", " ", "1", "2", "3", "4", "5", " days"},
        {"in", " 12345", " days"},
        {"in", " ", "123", "45", " days"},
        {"in", " ", "1", "2", "3", "4", "5", " days"}}},
      {"   7",
       {{"   ", "7"}, {"  ", " 7"}, {"  ", " ", "7"}, {"  ", " ", "7"}}},
      {"x = y;\n\n\n  z\n",
       {{"x", " =", " y", ";", "\n\n\n ", " z", "\n"},
        {"x", " =", " y", ";", "\n\n\n ", " z", "\n"},
        {"x", " =", " y", ";\n\n\n", " ", " z", "\n"},
        {"x", " =", " y", ";\n\n\n", " ", " z", "\n"}}},
      {" (a) --b!?\r\n",
       {{" (", "a", ")", " --", "b", "!?", "\r\n"},
        {" (", "a", ")", " --", "b", "!?", "\r\n"},
        {" (", "a", ")", " --", "b", "!?\r\n"},
        {" (", "a", ")", " --", "b", "!?\r\n"}}},
      {"é漢字 ½x\u0301",
       {{"é漢字", " ", "½", "x", "\u0301"},
        {"é漢字", " ½", "x", "\u0301"},
        {"é漢字", " ", "½", "x", "\u0301"},
        {"é漢字", " ", "½", "x", "\u0301"}}},
      // U+180E was white space in old versions of Unicode.
      {"a\u00A0\u3000b\u180Ec",
       {{"a", "\u00A0", "\u3000", "b", "\u180E", "c"},
        {"a", "\u00A0", "\u3000", "b", "\u180E", "c"},
        {"a", "\u00A0", "\u3000b", "\u180Ec"},
        {"a", "\u00A0", "\u3000b", "\u180Ec"}}},
  };
}

TEST(WordSplitterTest, SplitsAsPublished) {
  for (const Example& example : Examples()) {
    for (size_t i = 0; i < std::size(kNames); ++i) {
      EXPECT_THAT(Split(kNames[i], example.text),
                  ElementsAreArray(example.words[i]))
          << kNames[i] << " of " << Quoted(example.text);
    }
  }
}

TEST(WordSplitterTest, BytesThatAreNotUtf8AreAWord) {
  for (const char* name : kNames) {
    EXPECT_THAT(Split(name,
                      "ab\xE2\x82\xFF"
                      "cd"),
                ElementsAre("ab", "\xE2\x82\xFF", "cd"));
    // White space before them is at the end of a text.
    EXPECT_THAT(Split(name, "a  \xFF  b"),
                ElementsAre("a", "  ", "\xFF", " ", " b"));
    EXPECT_THAT(Split(name, "\x80"), ElementsAre("\x80"));
    EXPECT_THAT(Split(name, ""), ElementsAre());
  }
}

TEST(WordSplitterTest, WordsAreTheWholeText) {
  Rng rng(1);
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (int32_t length = RandomInt(rng, 0, 200); length > 0; --length) {
      // Half of it ASCII, so that there are words.
      text.push_back(static_cast<char>(RandomInt(rng, 0, 255) &
                                       (RandomChance(rng, 0.5) ? 0x7F : 0xFF)));
    }
    for (const char* name : kNames) {
      const std::vector<absl::string_view> words = Split(name, text);
      EXPECT_EQ(absl::StrJoin(words, ""), text) << name << " " << Quoted(text);
      for (const absl::string_view word : words) EXPECT_FALSE(word.empty());
    }
  }
}

// With an expression that goes back over the text, these would take hours.
TEST(WordSplitterTest, LongWordsTakeLinearTime) {
  for (const char* name : kNames) {
    for (const char* piece : {" ", "a", "7", "!", "\n", " \n", "é", "\u3000"}) {
      std::string text;
      for (int i = 0; i < 50000; ++i) text += piece;
      EXPECT_EQ(absl::StrJoin(Split(name, text), ""), text);
      EXPECT_EQ(absl::StrJoin(Split(name, text + "x"), ""), text + "x");
    }
  }
}

TEST(WordSplitterTest, OtherNamesAreRefused) {
  for (const char* name : {"", "default", "gpt2", "deepseek-llm", "qwen"}) {
    EXPECT_THAT(
        WordSplitter::Create(name),
        IsInvalid(absl::StrCat("tokenizer.ggml.pre: expected one of smollm, "
                               "gpt-2, llama-bpe, qwen2; got \"",
                               name, "\"")));
  }
}

}  // namespace
}  // namespace blockmgr
