#include "engine/tokenizer/tokenizer_files.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>
#include <nlohmann/json.hpp>

#include "engine/gguf/gguf_file.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const ModelKind kKind = {.model_type = "llama",
                         .architectures = {"LlamaForCausalLM"},
                         .context_tokens = 8192};

std::string SmallGguf(absl::string_view pre, const std::string& token = "ab") {
  GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", pre);
  writer.Add("tokenizer.ggml.tokens",
             std::vector<std::string>{"<e>", "a", "b", "ab", "<u>", token});
  writer.Add("tokenizer.ggml.token_type",
             std::vector<int32_t>{3, 1, 1, 1, 4, 1});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  writer.Add("tokenizer.ggml.bos_token_id", uint32_t{0});
  writer.Add("tokenizer.ggml.eos_token_id", uint32_t{4});
  writer.Add("tokenizer.chat_template", "{{ messages }}");
  return writer.Finish();
}

absl::StatusOr<TokenizerFiles> FilesOf(const std::string& bytes) {
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_OK(file);
  return MakeTokenizerFiles(**file, kKind);
}

TEST(TokenizerFilesTest, HaveTheVocabularyTheRulesAndTheTemplate) {
  ASSERT_OK_AND_ASSIGN(const TokenizerFiles files,
                       FilesOf(SmallGguf("smollm", "x")));
  const json tokenizer = json::parse(files.tokenizer);
  EXPECT_EQ(
      tokenizer["model"]["vocab"],
      json({{"<e>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"<u>", 4}, {"x", 5}}));
  EXPECT_EQ(tokenizer["model"]["merges"], json({"a b"}));
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], false);
  ASSERT_EQ(tokenizer["added_tokens"].size(), 2);
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<e>");
  EXPECT_EQ(tokenizer["added_tokens"][0]["special"], true);
  EXPECT_EQ(tokenizer["added_tokens"][1]["special"], false);
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Digits");
  EXPECT_EQ(tokenizer["post_processor"], nullptr);
  const json tokenizer_config = json::parse(files.tokenizer_config);
  EXPECT_EQ(tokenizer_config["chat_template"], "{{ messages }}");
  EXPECT_EQ(tokenizer_config["bos_token"], "<e>");
  EXPECT_EQ(tokenizer_config["eos_token"], "<u>");
  const json config = json::parse(files.config);
  EXPECT_EQ(config["architectures"], json({"LlamaForCausalLM"}));
  EXPECT_EQ(config["max_position_embeddings"], 8192);
  EXPECT_EQ(config["vocab_size"], 6);
}

TEST(TokenizerFilesTest, LlamaBeginsWithBosAndTakesWholeWords) {
  ASSERT_OK_AND_ASSIGN(const TokenizerFiles files,
                       FilesOf(SmallGguf("llama-bpe")));
  const json tokenizer = json::parse(files.tokenizer);
  EXPECT_EQ(tokenizer["model"]["ignore_merges"], true);
  EXPECT_EQ(tokenizer["post_processor"]["single"][0]["SpecialToken"]["id"],
            "<e>");
  const json& split = tokenizer["pre_tokenizer"]["pretokenizers"][0];
  EXPECT_EQ(split["type"], "Split");
  EXPECT_THAT(split["pattern"]["Regex"].get<std::string>(),
              HasSubstr("\\p{N}{1,3}"));
}

TEST(TokenizerFilesTest, RefuseTextThatIsNotUtf8) {
  EXPECT_THAT(FilesOf(SmallGguf("smollm", "\xFF")),
              IsInvalid("tokenizer.ggml.tokens: expected UTF-8"));
}

// What a reader of zip archives finds.
std::map<std::string, std::string> Unzip(const std::string& bytes) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const source =
      zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  const std::unique_ptr<zip_t, void (*)(zip_t*)> archive(
      zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error),
      &zip_discard);
  std::map<std::string, std::string> files;
  if (archive == nullptr) return files;
  for (zip_uint64_t i = 0;
       i < static_cast<zip_uint64_t>(zip_get_num_entries(archive.get(), 0));
       ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    EXPECT_EQ(zip_stat_index(archive.get(), i, 0, &status), 0);
    std::string text(static_cast<size_t>(status.size), '\0');
    zip_file_t* const file = zip_fopen_index(archive.get(), i, 0);
    EXPECT_EQ(zip_fread(file, text.data(), text.size()),
              static_cast<zip_int64_t>(text.size()));
    zip_fclose(file);
    files[status.name] = text;
  }
  return files;
}

TEST(TokenizerFilesTest, AreZippedToTheSameBytes) {
  const TokenizerFiles files{.tokenizer = std::string(100'000, 'a'),
                             .tokenizer_config = "b",
                             .config = ""};
  ASSERT_OK_AND_ASSIGN(const std::string zip, ZipTokenizerFiles(files));
  EXPECT_LT(zip.size(), 1000u);
  const std::map<std::string, std::string> expected = {
      {"tokenizer.json", files.tokenizer},
      {"tokenizer_config.json", "b"},
      {"config.json", ""}};
  EXPECT_EQ(Unzip(zip), expected);
  ASSERT_OK_AND_ASSIGN(const std::string again, ZipTokenizerFiles(files));
  EXPECT_TRUE(again == zip);
}

}  // namespace
}  // namespace blockmgr
