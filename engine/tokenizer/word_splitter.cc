#include "engine/tokenizer/word_splitter.h"

#include <pcre2.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "engine/tokenizer/utf8.h"

namespace blockmgr {
namespace {

struct Rule {
  absl::string_view name;
  absl::string_view pattern;
};

// The expressions are written as published, but for two things. White space is
// in brackets, because \s is replaced below. And smollm is published in two
// steps, which cut out each number character before the expression of gpt-2
// sees the text between them. One expression does both: what comes before a
// number character is white space at the end of a text.
constexpr std::array<Rule, 4> kRules = {{
    {"smollm", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+)"
               R"(|[\s]+(?![^\s\p{N}])|[\s]+)"},
    {"gpt-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
              R"(|[\s]+(?![^\s])|[\s]+)"},
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)"},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)"},
}};

// White space as Unicode has it. PCRE2 counts U+180E to its \s, which Unicode
// no longer does.
constexpr char kWhiteSpace[] = R"(\p{Z}\t-\r\x{85})";

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct WordSplitter::Pattern {
  explicit Pattern(absl::string_view expression) {
    const std::string text =
        absl::StrReplaceAll(expression, {{R"(\s)", kWhiteSpace}});
    int error = 0;
    PCRE2_SIZE error_position = 0;
    // An expression matches any character, so there is always a match where the
    // last one ended.
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error,
                         &error_position, nullptr);
    BM_CHECK(code != nullptr);
    // Where code cannot be made at run time, pcre2_match interprets.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Appends the words of UTF-8.
  void Split(absl::string_view text, pcre2_match_data* match,
             std::vector<absl::string_view>* words) const {
    const size_t* bounds = pcre2_get_ovector_pointer(match);
    size_t end = 0;
    for (size_t begin = 0; begin < text.size(); begin = end) {
      const int result =
          pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                      text.size(), begin, PCRE2_NO_UTF_CHECK, match, nullptr);
      if (result > 0) {
        end = bounds[1];
      } else {
        // Without code made at run time, millions of spaces reach a limit of
        // the interpreter. Then a character is a word.
        end = begin + 1;
        while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
      }
      BM_CHECK(end > begin);
      words->push_back(text.substr(begin, end - begin));
    }
  }

  pcre2_code* code;
};

absl::string_view WordSplitter::PublishedExpression(absl::string_view name) {
  for (const Rule& rule : kRules) {
    if (rule.name == name) return rule.pattern;
  }
  return "";
}

absl::StatusOr<WordSplitter> WordSplitter::Create(absl::string_view name) {
  std::string names;
  for (const Rule& rule : kRules) {
    if (rule.name == name) {
      return WordSplitter(std::make_shared<const Pattern>(rule.pattern));
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", rule.name);
  }
  return Invalid("tokenizer.ggml.pre: expected one of ", names, "; got ",
                 Quoted(name));
}

void WordSplitter::Split(absl::string_view text,
                         std::vector<absl::string_view>* words) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(
      pcre2_match_data_create_from_pattern(pattern_->code, nullptr));
  BM_CHECK(match != nullptr);
  while (!text.empty()) {
    const size_t num_valid = ValidPrefix(text);
    pattern_->Split(text.substr(0, num_valid), match.get(), words);
    text.remove_prefix(num_valid);
    const size_t num_invalid = InvalidPrefix(text);
    if (num_invalid > 0) words->push_back(text.substr(0, num_invalid));
    text.remove_prefix(num_invalid);
  }
}

}  // namespace blockmgr
