#include "engine/tokenizer/tokenizer_files.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <zip.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/word_splitter.h"

namespace blockmgr {
namespace {

using nlohmann::json;

absl::Status CheckUtf8(absl::string_view key, absl::string_view text) {
  if (ValidPrefix(text) == text.size()) return absl::OkStatus();
  return Invalid(key, ": expected UTF-8, got ", Quoted(text));
}

absl::Status CheckTexts(const TokenizerData& data) {
  for (const absl::string_view token : data.tokens) {
    BM_RETURN_IF_ERROR(CheckUtf8("tokenizer.ggml.tokens", token));
  }
  for (const absl::string_view merge : data.merges) {
    BM_RETURN_IF_ERROR(CheckUtf8("tokenizer.ggml.merges", merge));
  }
  return CheckUtf8("tokenizer.chat_template", data.chat_template.value_or(""));
}

json ByteLevel(bool uses_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", uses_regex}};
}

// What cuts a text into words.
json PreTokenizer(absl::string_view pre) {
  json steps = json::array();
  if (pre == "smollm") {
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(ByteLevel(true));
  } else if (pre == "gpt-2") {
    steps.push_back(ByteLevel(true));
  } else {
    steps.push_back(
        {{"type", "Split"},
         {"pattern",
          {{"Regex", std::string(WordSplitter::PublishedExpression(pre))}}},
         {"behavior", "Isolated"},
         {"invert", false}});
    steps.push_back(ByteLevel(false));
  }
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

std::string TextOf(const TokenizerData& data, int64_t token) {
  return std::string(data.tokens[static_cast<size_t>(token)]);
}

// Puts BOS before a text, if the model wants one.
json PostProcessor(const TokenizerData& data, const Tokenizer& tokenizer) {
  if (!tokenizer.begin_token().has_value()) return nullptr;
  const int32_t token = *tokenizer.begin_token();
  const std::string text = TextOf(data, token);
  const json bos = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", json::array({bos, first})},
          {"pair", json::array({bos, first, second})},
          {"special_tokens",
           {{text,
             {{"id", text},
              {"ids", json::array({token})},
              {"tokens", json::array({text})}}}}}};
}

json TokenizerJson(const TokenizerData& data, const Tokenizer& tokenizer) {
  json vocabulary = json::object();
  json added = json::array();
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const std::string text(data.tokens[i]);
    vocabulary[text] = i;
    const int64_t type = data.token_type[i];
    if ((type != kControlToken && type != kUserDefinedToken) || text.empty()) {
      continue;
    }
    added.push_back({{"id", i},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControlToken}});
  }
  json merges = json::array();
  for (const absl::string_view merge : data.merges) {
    merges.push_back(std::string(merge));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", PreTokenizer(data.pre)},
          {"post_processor", PostProcessor(data, tokenizer)},
          {"decoder", ByteLevel(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", data.pre == "llama-bpe"},
            {"vocab", std::move(vocabulary)},
            {"merges", std::move(merges)}}}};
}

json TokenizerConfigJson(const TokenizerData& data) {
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  if (data.chat_template.has_value()) {
    config["chat_template"] = std::string(*data.chat_template);
  }
  if (data.bos_token_id.has_value()) {
    config["bos_token"] = TextOf(data, *data.bos_token_id);
  }
  if (data.eos_token_id.has_value()) {
    config["eos_token"] = TextOf(data, *data.eos_token_id);
  }
  return config;
}

json ConfigJson(const ModelKind& kind, const TokenizerData& data) {
  json config = {{"model_type", kind.model_type},
                 {"architectures", kind.architectures},
                 {"max_position_embeddings", kind.context_tokens},
                 {"vocab_size", data.tokens.size()}};
  if (data.bos_token_id.has_value()) {
    config["bos_token_id"] = *data.bos_token_id;
  }
  if (data.eos_token_id.has_value()) {
    config["eos_token_id"] = *data.eos_token_id;
  }
  return config;
}

struct CloseArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};

}  // namespace

absl::StatusOr<TokenizerFiles> MakeTokenizerFiles(const GgufFile& file,
                                                  const ModelKind& kind) {
  BM_ASSIGN_OR_RETURN(const TokenizerData data, ReadTokenizerData(file));
  return MakeTokenizerFiles(data, kind);
}

absl::StatusOr<TokenizerFiles> MakeTokenizerFiles(const TokenizerData& data,
                                                  const ModelKind& kind) {
  // It checks what the data say, ids above all.
  BM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Create(data));
  BM_RETURN_IF_ERROR(CheckTexts(data));
  BM_RETURN_IF_ERROR(CheckUtf8("general.architecture", kind.model_type));
  return TokenizerFiles{.tokenizer = TokenizerJson(data, tokenizer).dump(),
                        .tokenizer_config = TokenizerConfigJson(data).dump(),
                        .config = ConfigJson(kind, data).dump()};
}

absl::StatusOr<std::string> ZipTokenizerFiles(const TokenizerFiles& files) {
  const auto failed = [] {
    return absl::ResourceExhaustedError("the tokenizer cannot be zipped");
  };
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const bytes = zip_source_buffer_create(nullptr, 0, 0, &error);
  if (bytes == nullptr) return failed();
  // It is read after the archive, which owns it too, has been closed.
  zip_source_keep(bytes);
  const std::unique_ptr<zip_source_t, void (*)(zip_source_t*)> keeper(
      bytes, &zip_source_free);
  std::unique_ptr<zip_t, CloseArchive> archive(
      zip_open_from_source(bytes, ZIP_TRUNCATE, &error));
  if (archive == nullptr) return failed();
  for (const auto& [name, text] :
       {std::pair("tokenizer.json", &files.tokenizer),
        std::pair("tokenizer_config.json", &files.tokenizer_config),
        std::pair("config.json", &files.config)}) {
    zip_source_t* const source =
        zip_source_buffer(archive.get(), text->data(), text->size(), 0);
    if (source == nullptr) return failed();
    const zip_int64_t index =
        zip_file_add(archive.get(), name, source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return failed();
    }
    // The first day that zip knows: the time does not belong to the content.
    constexpr zip_uint16_t kFirstDay = (1 << 5) | 1;
    zip_file_set_dostime(archive.get(), static_cast<zip_uint64_t>(index), 0,
                         kFirstDay, 0);
  }
  if (zip_close(archive.get()) != 0) return failed();
  (void)archive.release();  // it is gone
  zip_stat_t status;
  zip_stat_init(&status);
  if (zip_source_stat(bytes, &status) != 0 || zip_source_open(bytes) != 0) {
    return failed();
  }
  std::string zip(static_cast<size_t>(status.size), '\0');
  const zip_int64_t read = zip_source_read(bytes, zip.data(), zip.size());
  zip_source_close(bytes);
  if (read != static_cast<zip_int64_t>(zip.size())) return failed();
  return zip;
}

}  // namespace blockmgr
