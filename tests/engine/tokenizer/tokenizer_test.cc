// Tokens of small vocabularies made by hand, and of random ones, compared with
// merges of spelled words one by one.
#include "engine/tokenizer/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/word_splitter.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kNormal = 1;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kUnused = 5;

// A vocabulary that owns its texts. Token b is byte b, for all bytes.
class Vocabulary {
 public:
  explicit Vocabulary(absl::string_view pre) {
    data_.pre = Keep(std::string(pre));
    for (int byte = 0; byte < 256; ++byte) {
      Add(SpellByte(static_cast<uint8_t>(byte)), kNormal);
    }
  }

  // Adds a token as the file spells it, and returns it.
  int32_t Add(const std::string& token, int64_t type) {
    data_.tokens.push_back(Keep(token));
    data_.token_type.push_back(type);
    return static_cast<int32_t>(data_.tokens.size()) - 1;
  }
  // Adds a merge, and the token that it makes unless it is there already.
  int32_t Merge(const std::string& left, const std::string& right) {
    data_.merges.push_back(Keep(absl::StrCat(left, " ", right)));
    for (size_t i = 0; i < data_.tokens.size(); ++i) {
      if (data_.tokens[i] == left + right) return static_cast<int32_t>(i);
    }
    return Add(left + right, kNormal);
  }

  TokenizerData& data() { return data_; }
  Tokenizer Make() const {
    absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(data_);
    EXPECT_OK(tokenizer);
    return *std::move(tokenizer);
  }

 private:
  absl::string_view Keep(std::string text) {
    return texts_.emplace_back(std::move(text));
  }

  std::deque<std::string> texts_;
  TokenizerData data_;
};

TEST(TokenizerTest, MergesTheBytesOfWords) {
  Vocabulary vocabulary("gpt-2");
  const int32_t lo = vocabulary.Merge("l", "o");
  const int32_t low = vocabulary.Merge("lo", "w");
  const int32_t space_low = vocabulary.Merge("Ġ", "low");
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_THAT(tokenizer.Encode("low low lo", false),
              ElementsAre(low, space_low, ' ', lo));
  // Tokens do not reach over the ends of words.
  EXPECT_THAT(tokenizer.Encode("lo.w", false), ElementsAre(lo, '.', 'w'));
  EXPECT_THAT(tokenizer.Encode("\n\xC3\xA9", false),
              ElementsAre('\n', 0xC3, 0xA9));
  EXPECT_THAT(tokenizer.Encode("", false), IsEmpty());
  EXPECT_EQ(tokenizer.Decode({{low, space_low, ' ', lo, 0xFF}}),
            "low low lo\xFF");
  EXPECT_EQ(tokenizer.vocabulary_size(), 259);
}

// "abc" is a token that no merge makes of "abc": "bc" is merged first.
TEST(TokenizerTest, AWordInTheVocabularyIsMergedAllTheSame) {
  for (const char* pre : {"smollm", "gpt-2", "qwen2"}) {
    Vocabulary vocabulary(pre);
    const int32_t bc = vocabulary.Merge("b", "c");
    vocabulary.Merge("a", "b");
    vocabulary.Merge("ab", "c");
    EXPECT_THAT(vocabulary.Make().Encode("abc", false), ElementsAre('a', bc))
        << pre;
  }
}

TEST(TokenizerTest, LlamaTakesAWordInTheVocabularyAsItIs) {
  Vocabulary vocabulary("llama-bpe");
  const int32_t bc = vocabulary.Merge("b", "c");
  vocabulary.Merge("a", "b");
  const int32_t abc = vocabulary.Merge("ab", "c");
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_THAT(tokenizer.Encode("abc", false), ElementsAre(abc));
  EXPECT_THAT(tokenizer.Encode("abcd", false), ElementsAre('a', bc, 'd'));
}

TEST(TokenizerTest, ControlTokensAreFoundIfAsked) {
  Vocabulary vocabulary("gpt-2");
  const int32_t end = vocabulary.Add("<end>", kControl);
  const int32_t ending = vocabulary.Add("<end>ing", kControl);
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_THAT(tokenizer.Encode("a<end>b", true), ElementsAre('a', end, 'b'));
  EXPECT_THAT(tokenizer.Encode("<end>ing<end>in", true),
              ElementsAre(ending, end, 'i', 'n'));
  EXPECT_THAT(tokenizer.Encode("<end>", false),
              ElementsAre('<', 'e', 'n', 'd', '>'));
  EXPECT_EQ(tokenizer.Decode({{'a', end, 'b'}}), "a<end>b");
  std::vector<std::string> texts = tokenizer.TextsWithoutControl();
  ASSERT_THAT(texts, SizeIs(258));
  EXPECT_EQ(texts[static_cast<size_t>(end)], "");
  EXPECT_EQ(texts[0xFF], "\xFF");
  EXPECT_EQ(texts[' '], " ");
}

TEST(TokenizerTest, UserDefinedTokensAreAlwaysFound) {
  Vocabulary vocabulary("gpt-2");
  const int32_t tool = vocabulary.Add("<tool é>", kUserDefined);
  const int32_t longer = vocabulary.Add("<tool é> <end>", kControl);
  vocabulary.Add("<unused>", kUnused);
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_THAT(tokenizer.Encode("a<tool é>", false), ElementsAre('a', tool));
  EXPECT_THAT(tokenizer.Encode("a<tool é> <end>", true),
              ElementsAre('a', longer));
  EXPECT_EQ(tokenizer.Encode("<unused>", true).size(), 8u);
  // Their text is not spelled in the byte alphabet.
  EXPECT_EQ(tokenizer.Decode({{tool}}), "<tool é>");
}

TEST(TokenizerTest, BytesWithoutATokenAreLeftOut) {
  Vocabulary vocabulary("gpt-2");
  vocabulary.Merge("a", "b");
  vocabulary.data().tokens['x'] = "[PAD]";
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_THAT(tokenizer.Encode("axb x", false), ElementsAre(256, ' '));
}

TEST(TokenizerTest, TokensOutsideTheVocabularyHaveNoBytes) {
  const Tokenizer tokenizer = Vocabulary("gpt-2").Make();
  EXPECT_EQ(
      tokenizer.Decode({{'a', -1, 256, 'b', std::numeric_limits<int32_t>::min(),
                         std::numeric_limits<int32_t>::max()}}),
      "ab");
}

TEST(TokenizerTest, ANormalTokenThatSpellsNoBytesHasItsText) {
  Vocabulary vocabulary("gpt-2");
  const int32_t odd = vocabulary.Add("€ x", kNormal);
  const Tokenizer tokenizer = vocabulary.Make();
  EXPECT_EQ(tokenizer.Decode({{odd}}), "€ x");
  EXPECT_EQ(tokenizer.Encode("€ x", true).size(), 5u);
}

TEST(TokenizerTest, NamesTheTokensAtBeginAndEnd) {
  Vocabulary vocabulary("gpt-2");
  EXPECT_EQ(vocabulary.Make().begin_token(), std::nullopt);
  EXPECT_THAT(vocabulary.Make().end_tokens(), IsEmpty());
  vocabulary.data().bos_token_id = 1;
  vocabulary.data().eos_token_id = 2;
  vocabulary.data().eot_token_id = 2;
  EXPECT_EQ(vocabulary.Make().begin_token(), std::nullopt);
  EXPECT_THAT(vocabulary.Make().end_tokens(), ElementsAre(2));
  vocabulary.data().add_bos_token = true;
  vocabulary.data().eot_token_id = 255;
  EXPECT_EQ(vocabulary.Make().begin_token(), 1);
  EXPECT_THAT(vocabulary.Make().end_tokens(), ElementsAre(2, 255));

  Vocabulary llama("llama-bpe");
  llama.data().bos_token_id = 3;
  EXPECT_EQ(llama.Make().begin_token(), 3);
  llama.data().add_bos_token = false;
  EXPECT_EQ(llama.Make().begin_token(), std::nullopt);
}

TEST(TokenizerTest, HandsOnTheChatTemplate) {
  Vocabulary vocabulary("gpt-2");
  EXPECT_THAT(vocabulary.Make().chat_template(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("tokenizer.chat_template")));
  vocabulary.data().chat_template = "{{ messages }}\n";
  const Tokenizer tokenizer = vocabulary.Make();
  ASSERT_OK_AND_ASSIGN(const absl::string_view text, tokenizer.chat_template());
  EXPECT_EQ(text, "{{ messages }}\n");
}

TEST(TokenizerTest, OtherRulesOfWordsAreRefusedByName) {
  Vocabulary vocabulary("gpt-2");
  vocabulary.data().pre = "tekken";
  EXPECT_THAT(Tokenizer::Create(vocabulary.data()),
              IsInvalid("tokenizer.ggml.pre: expected one of smollm, gpt-2, "
                        "llama-bpe, qwen2; got \"tekken\""));
}

TEST(TokenizerTest, ContradictionsAreRefusedByKey) {
  const auto refusal = [](auto change) {
    Vocabulary vocabulary("gpt-2");
    vocabulary.Merge("a", "b");
    change(vocabulary.data());
    return Tokenizer::Create(vocabulary.data());
  };
  EXPECT_THAT(refusal([](TokenizerData& data) { data.tokens.clear(); }),
              IsInvalid("tokenizer.ggml.tokens: expected 1 to"));
  EXPECT_THAT(refusal([](TokenizerData& data) { data.token_type.pop_back(); }),
              IsInvalid("tokenizer.ggml.token_type: expected 257, as many as "
                        "tokenizer.ggml.tokens; got 256"));
  for (const char* merge : {"", "ab", "a b c", "a  b"}) {
    EXPECT_THAT(
        refusal([&](TokenizerData& data) { data.merges.push_back(merge); }),
        IsInvalid(absl::StrCat("tokenizer.ggml.merges[1]: expected two tokens "
                               "with a space between them, got \"",
                               merge, "\"")));
  }
  EXPECT_THAT(
      refusal([](TokenizerData& data) { data.merges.push_back("zz y"); }),
      IsInvalid("tokenizer.ggml.merges[1]: expected tokens of "
                "tokenizer.ggml.tokens, got \"zz y\", but \"zz\" is none"));
  EXPECT_THAT(
      refusal([](TokenizerData& data) { data.merges.push_back("z y"); }),
      IsInvalid("\"zy\" is none"));
  EXPECT_THAT(refusal([](TokenizerData& data) { data.bos_token_id = 257; }),
              IsInvalid("tokenizer.ggml.bos_token_id: expected a token below "
                        "257, got 257"));
  EXPECT_THAT(refusal([](TokenizerData& data) { data.eos_token_id = -1; }),
              IsInvalid("tokenizer.ggml.eos_token_id: expected a token below "
                        "257, got -1"));
  EXPECT_THAT(refusal([](TokenizerData& data) { data.eot_token_id = 300; }),
              IsInvalid("tokenizer.ggml.eot_token_id"));
}

// A vocabulary of random merges of a few letters, so that merges overlap.
Vocabulary RandomVocabulary(absl::string_view pre, Rng& rng) {
  Vocabulary vocabulary(pre);
  std::vector<std::string> pieces = {"a", "b", "Ġ", "Ã", "©"};
  for (int i = 0; i < 25; ++i) {
    const auto pick = [&] {
      return pieces[static_cast<size_t>(
          RandomInt(rng, 0, static_cast<int32_t>(pieces.size()) - 1))];
    };
    const std::string left = pick();
    const std::string right = pick();
    vocabulary.Merge(left, right);
    pieces.push_back(left + right);
  }
  vocabulary.Add("<ab>", kControl);
  vocabulary.Add("ba<", kUserDefined);
  return vocabulary;
}

std::string RandomText(Rng& rng) {
  constexpr const char* kPieces[] = {"a", "b",  "a",    "b",    " ", "é",
                                     "7", "\n", "\xC3", "\xFF", "<", ">"};
  std::string text;
  for (int32_t length = RandomInt(rng, 0, 40); length > 0; --length) {
    text += kPieces[RandomInt(rng, 0, std::size(kPieces) - 1)];
  }
  return text;
}

// Merges strings, by a search of all merges for each.
std::vector<int32_t> EncodeWordBySearch(const TokenizerData& data,
                                        absl::string_view word) {
  std::vector<std::string> pieces;
  for (const char byte : word) {
    pieces.push_back(SpellByte(static_cast<uint8_t>(byte)));
  }
  const auto merge_one = [&] {
    // Of equal merges, the last counts: from the back, the first is taken.
    std::optional<size_t> best;
    size_t best_rank = data.merges.size();
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const std::string pair = absl::StrCat(pieces[i], " ", pieces[i + 1]);
      for (size_t rank = data.merges.size(); rank-- > 0;) {
        if (data.merges[rank] != pair) continue;
        if (rank < best_rank) {
          best = i;
          best_rank = rank;
        }
        break;
      }
    }
    if (!best.has_value()) return false;
    pieces[*best] += pieces[*best + 1];
    pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(*best) + 1);
    return true;
  };
  while (merge_one()) {
  }
  std::vector<int32_t> tokens;
  for (const std::string& piece : pieces) {
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      if (data.tokens[i] == piece) tokens.push_back(static_cast<int32_t>(i));
    }
  }
  return tokens;
}

TEST(TokenizerTest, AgreesWithASearchForEachMerge) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    Vocabulary vocabulary = RandomVocabulary("gpt-2", rng);
    vocabulary.data().token_type.back() = kControl;  // no special tokens
    const Tokenizer tokenizer = vocabulary.Make();
    ASSERT_OK_AND_ASSIGN(const WordSplitter splitter,
                         WordSplitter::Create("gpt-2"));
    for (int i = 0; i < 10; ++i) {
      const std::string text = RandomText(rng);
      std::vector<absl::string_view> words;
      splitter.Split(text, &words);
      std::vector<int32_t> expected;
      for (const absl::string_view word : words) {
        const std::vector<int32_t> tokens =
            EncodeWordBySearch(vocabulary.data(), word);
        expected.insert(expected.end(), tokens.begin(), tokens.end());
      }
      ASSERT_EQ(tokenizer.Encode(text, false), expected)
          << "seed " << seed << ", " << Quoted(text);
    }
  }
}

TEST(TokenizerTest, DecodingGivesTheBytesBack) {
  for (const char* pre : {"smollm", "gpt-2", "llama-bpe", "qwen2"}) {
    Rng rng(7);
    const Tokenizer tokenizer = RandomVocabulary(pre, rng).Make();
    for (int i = 0; i < 300; ++i) {
      std::string text = RandomText(rng);
      for (int32_t length = RandomInt(rng, 0, 40); length > 0; --length) {
        text.push_back(static_cast<char>(RandomInt(rng, 0, 255)));
      }
      for (const bool parse_special : {false, true}) {
        ASSERT_EQ(tokenizer.Decode(tokenizer.Encode(text, parse_special)), text)
            << pre << " " << Quoted(text);
      }
    }
  }
}

TEST(TokenizerTest, TextsBetweenSpecialTokensAreEncodedAlone) {
  Rng rng(3);
  Vocabulary vocabulary = RandomVocabulary("llama-bpe", rng);
  const int32_t special = vocabulary.Add("|x|", kControl);
  const Tokenizer tokenizer = vocabulary.Make();
  for (int i = 0; i < 300; ++i) {
    std::string text;
    std::vector<int32_t> expected;
    for (int part = RandomInt(rng, 1, 4); part > 0; --part) {
      const std::string piece = RandomText(rng);
      absl::StrAppend(&text, piece, "|x|");
      const std::vector<int32_t> tokens = tokenizer.Encode(piece, true);
      expected.insert(expected.end(), tokens.begin(), tokens.end());
      expected.push_back(special);
    }
    ASSERT_EQ(tokenizer.Encode(text, true), expected) << Quoted(text);
  }
}

}  // namespace
}  // namespace blockmgr
