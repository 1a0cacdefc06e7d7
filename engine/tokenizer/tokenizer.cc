#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/byte_pairs.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/word_splitter.h"

namespace blockmgr {
namespace {

constexpr int32_t kNoToken = -1;

// The model whose published tokenizer takes a word that is in the vocabulary as
// it is, without merging its bytes, and that begins texts with BOS unless the
// file says otherwise.
constexpr absl::string_view kLlamaBpe = "llama-bpe";

// Texts of tokens, as the file spells them.
using TokenIds = absl::flat_hash_map<absl::string_view, int32_t>;

absl::Status CheckShapes(const TokenizerData& data) {
  constexpr size_t kMax = std::numeric_limits<int32_t>::max();
  if (data.tokens.empty() || data.tokens.size() > kMax) {
    return Invalid("tokenizer.ggml.tokens: expected 1 to ", kMax,
                   " tokens, got ", data.tokens.size());
  }
  if (data.token_type.size() != data.tokens.size()) {
    return Invalid("tokenizer.ggml.token_type: expected ", data.tokens.size(),
                   ", as many as tokenizer.ggml.tokens; got ",
                   data.token_type.size());
  }
  if (data.merges.size() > kMax) {
    return Invalid("tokenizer.ggml.merges: expected at most ", kMax, ", got ",
                   data.merges.size());
  }
  return absl::OkStatus();
}

TokenIds IdsOf(const std::vector<absl::string_view>& tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  int32_t id = 0;
  for (const absl::string_view token : tokens) {
    ids.insert_or_assign(token, id++);
  }
  return ids;
}

absl::StatusOr<PairRule> ReadMerge(absl::string_view merge,
                                   const TokenIds& ids) {
  const size_t space = merge.find(' ');
  if (space == absl::string_view::npos ||
      merge.find(' ', space + 1) != absl::string_view::npos) {
    return Invalid("expected two tokens with a space between them, got ",
                   Quoted(merge));
  }
  const absl::string_view left = merge.substr(0, space);
  const absl::string_view right = merge.substr(space + 1);
  PairRule rule{};
  const auto find = [&ids, merge](absl::string_view token, int32_t* id) {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      return Invalid("expected tokens of tokenizer.ggml.tokens, got ",
                     Quoted(merge), ", but ", Quoted(token), " is none");
    }
    *id = found->second;
    return absl::OkStatus();
  };
  BM_RETURN_IF_ERROR(find(left, &rule.left));
  BM_RETURN_IF_ERROR(find(right, &rule.right));
  BM_RETURN_IF_ERROR(find(absl::StrCat(left, right), &rule.merged));
  return rule;
}

absl::StatusOr<BytePairs> ReadMerges(
    const std::vector<absl::string_view>& merges, const TokenIds& ids) {
  std::vector<PairRule> rules;
  rules.reserve(merges.size());
  for (const absl::string_view merge : merges) {
    const absl::StatusOr<PairRule> rule = ReadMerge(merge, ids);
    if (!rule.ok()) {
      return Invalid("tokenizer.ggml.merges[", rules.size(),
                     "]: ", rule.status().message());
    }
    rules.push_back(*rule);
  }
  return BytePairs(rules);
}

// Returns the tokens of the given types, as their text is.
SpecialTokens TokensOfTypes(const TokenizerData& data,
                            std::span<const int64_t> types) {
  std::vector<SpecialToken> tokens;
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (std::find(types.begin(), types.end(), data.token_type[i]) ==
        types.end()) {
      continue;
    }
    tokens.push_back({.text = std::string(data.tokens[i]),
                      .token = static_cast<int32_t>(i)});
  }
  return SpecialTokens(std::move(tokens));
}

absl::StatusOr<std::optional<int32_t>> ReadId(absl::string_view key,
                                              std::optional<int64_t> id,
                                              size_t num_tokens) {
  if (!id.has_value()) return std::optional<int32_t>();
  if (*id < 0 || *id >= static_cast<int64_t>(num_tokens)) {
    return Invalid("tokenizer.ggml.", key, ": expected a token below ",
                   num_tokens, ", got ", *id);
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

}  // namespace

struct Tokenizer::Buffers {
  std::vector<absl::string_view> words;
  std::vector<int32_t> word;
  BytePairs::Scratch scratch;
  std::vector<int32_t> tokens;  // the result
};

Tokenizer::Tokenizer(WordSplitter splitter, BytePairs pairs,
                     SpecialTokens user_defined, SpecialTokens special)
    : splitter_(std::move(splitter)),
      pairs_(std::move(pairs)),
      user_defined_(std::move(user_defined)),
      special_(std::move(special)) {}

absl::StatusOr<Tokenizer> Tokenizer::Create(const GgufFile& file) {
  BM_ASSIGN_OR_RETURN(const TokenizerData data, ReadTokenizerData(file));
  return Create(data);
}

absl::StatusOr<Tokenizer> Tokenizer::Create(const TokenizerData& data) {
  BM_RETURN_IF_ERROR(CheckShapes(data));
  BM_ASSIGN_OR_RETURN(WordSplitter splitter, WordSplitter::Create(data.pre));
  const TokenIds ids = IdsOf(data.tokens);
  BM_ASSIGN_OR_RETURN(BytePairs pairs, ReadMerges(data.merges, ids));
  Tokenizer tokenizer(
      std::move(splitter), std::move(pairs),
      TokensOfTypes(data, {{kUserDefinedToken}}),
      TokensOfTypes(data, {{kUserDefinedToken, kControlToken}}));
  for (size_t byte = 0; byte < tokenizer.byte_tokens_.size(); ++byte) {
    const auto found = ids.find(SpellByte(static_cast<uint8_t>(byte)));
    tokenizer.byte_tokens_[byte] =
        found == ids.end() ? kNoToken : found->second;
  }
  tokenizer.AddWords(data, /*all=*/data.pre == kLlamaBpe);
  BM_RETURN_IF_ERROR(tokenizer.SetEnds(data));
  if (data.chat_template.has_value()) {
    tokenizer.chat_template_ = std::string(*data.chat_template);
  }
  return tokenizer;
}

void Tokenizer::AddWords(const TokenizerData& data, bool all) {
  Buffers buffers;
  bytes_.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    std::optional<std::string> bytes;
    if (data.token_type[i] == kControlToken) {
      control_tokens_.push_back(static_cast<int32_t>(i));
    }
    if (data.token_type[i] == kNormalToken) {
      bytes = ReadSpelledBytes(data.tokens[i]);
    }
    if (!bytes.has_value()) {
      bytes_.emplace_back(data.tokens[i]);
      continue;
    }
    const auto token = static_cast<int32_t>(i);
    buffers.tokens.clear();
    if (!all) EncodeWord(*bytes, &buffers);
    if (all || (buffers.tokens.size() == 1 && buffers.tokens[0] == token)) {
      words_.insert_or_assign(*bytes, token);
    }
    bytes_.push_back(*std::move(bytes));
  }
}

absl::Status Tokenizer::SetEnds(const TokenizerData& data) {
  const size_t num_tokens = data.tokens.size();
  BM_ASSIGN_OR_RETURN(const auto bos,
                      ReadId("bos_token_id", data.bos_token_id, num_tokens));
  BM_ASSIGN_OR_RETURN(const auto eos,
                      ReadId("eos_token_id", data.eos_token_id, num_tokens));
  BM_ASSIGN_OR_RETURN(const auto eot,
                      ReadId("eot_token_id", data.eot_token_id, num_tokens));
  if (data.add_bos_token.value_or(data.pre == kLlamaBpe)) begin_token_ = bos;
  if (eos.has_value()) end_tokens_.push_back(*eos);
  if (eot.has_value() && eot != eos) end_tokens_.push_back(*eot);
  return absl::OkStatus();
}

void Tokenizer::EncodeWord(absl::string_view word, Buffers* buffers) const {
  const auto found = words_.find(word);
  if (found != words_.end()) {
    buffers->tokens.push_back(found->second);
    return;
  }
  buffers->word.clear();
  for (const char byte : word) {
    const int32_t token = byte_tokens_[static_cast<uint8_t>(byte)];
    if (token != kNoToken) buffers->word.push_back(token);
  }
  pairs_.Merge(buffers->word, &buffers->scratch, &buffers->tokens);
}

void Tokenizer::EncodeText(absl::string_view text, Buffers* buffers) const {
  buffers->words.clear();
  splitter_.Split(text, &buffers->words);
  for (const absl::string_view word : buffers->words) {
    EncodeWord(word, buffers);
  }
}

std::vector<int32_t> Tokenizer::Encode(absl::string_view text,
                                       bool parse_special) const {
  BM_CHECK(text.size() <= std::numeric_limits<int32_t>::max());
  const SpecialTokens& special = parse_special ? special_ : user_defined_;
  Buffers buffers;
  size_t begin = 0;
  while (const auto match = special.Find(text, begin)) {
    EncodeText(text.substr(begin, match->position - begin), &buffers);
    buffers.tokens.push_back(match->token);
    begin = match->position + match->length;
  }
  EncodeText(text.substr(begin), &buffers);
  return std::move(buffers.tokens);
}

std::string Tokenizer::Decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary_size()) continue;
    text += bytes_[static_cast<size_t>(token)];
  }
  return text;
}

std::vector<std::string> Tokenizer::TextsWithoutControl() const {
  std::vector<std::string> texts = bytes_;
  for (const int32_t token : control_tokens_) {
    texts[static_cast<size_t>(token)].clear();
  }
  return texts;
}

absl::StatusOr<absl::string_view> Tokenizer::chat_template() const {
  if (!chat_template_.has_value()) {
    return absl::NotFoundError("tokenizer.chat_template: the file has none");
  }
  return absl::string_view(*chat_template_);
}

}  // namespace blockmgr
