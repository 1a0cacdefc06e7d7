// Metadata of files that a writer of the format makes.
#include "engine/tokenizer/tokenizer_data.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Adds the key unless it is `left_out`.
template <typename T>
void Add(absl::string_view key, const T& value, absl::string_view left_out,
         GgufWriter* writer) {
  if (key != left_out) writer->Add(key, value);
}

// A file with "ab" made of "a" and "b", without the key `left_out`, and with
// what `add` adds.
class SmallFile {
 public:
  explicit SmallFile(
      absl::string_view left_out = "",
      const std::function<void(GgufWriter&)>& add = [](GgufWriter&) {}) {
    GgufWriter writer;
    Add("tokenizer.ggml.model", absl::string_view("gpt2"), left_out, &writer);
    Add("tokenizer.ggml.pre", absl::string_view("qwen2"), left_out, &writer);
    Add("tokenizer.ggml.tokens",
        std::vector<std::string>{"<e>", "a", "b", "ab"}, left_out, &writer);
    Add("tokenizer.ggml.token_type", std::vector<int32_t>{3, 1, 1, 1}, left_out,
        &writer);
    Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"}, left_out,
        &writer);
    add(writer);
    bytes_ = writer.Finish();
    auto file = GgufFile::Parse(std::as_bytes(std::span(bytes_)));
    EXPECT_OK(file);
    file_ = *file;
  }

  const GgufFile& file() const { return *file_; }

 private:
  std::string bytes_;
  std::shared_ptr<const GgufFile> file_;
};

TEST(TokenizerDataTest, ReadsWhatAFileMustHave) {
  const SmallFile small;
  ASSERT_OK_AND_ASSIGN(const TokenizerData data,
                       ReadTokenizerData(small.file()));
  EXPECT_EQ(data.pre, "qwen2");
  EXPECT_THAT(data.tokens, ElementsAre("<e>", "a", "b", "ab"));
  EXPECT_THAT(data.token_type, ElementsAre(3, 1, 1, 1));
  EXPECT_THAT(data.merges, ElementsAre("a b"));
  EXPECT_EQ(data.bos_token_id, std::nullopt);
  EXPECT_EQ(data.eos_token_id, std::nullopt);
  EXPECT_EQ(data.eot_token_id, std::nullopt);
  EXPECT_EQ(data.add_bos_token, std::nullopt);
  EXPECT_EQ(data.chat_template, std::nullopt);
}

TEST(TokenizerDataTest, ReadsWhatAFileMayHave) {
  const SmallFile small("", [](GgufWriter& writer) {
    writer.Add("tokenizer.ggml.bos_token_id", uint32_t{1});
    writer.Add("tokenizer.ggml.eos_token_id", uint32_t{2});
    writer.Add("tokenizer.ggml.eot_token_id", uint32_t{3});
    writer.Add("tokenizer.ggml.add_bos_token", true);
    writer.Add("tokenizer.chat_template", absl::string_view("{{ x }}"));
  });
  ASSERT_OK_AND_ASSIGN(const TokenizerData data,
                       ReadTokenizerData(small.file()));
  EXPECT_EQ(data.bos_token_id, 1);
  EXPECT_EQ(data.eos_token_id, 2);
  EXPECT_EQ(data.eot_token_id, 3);
  EXPECT_EQ(data.add_bos_token, true);
  EXPECT_EQ(data.chat_template, "{{ x }}");
}

TEST(TokenizerDataTest, ATokenizerOutlivesItsFile) {
  std::optional<Tokenizer> tokenizer;
  {
    const SmallFile small("", [](GgufWriter& writer) {
      writer.Add("tokenizer.chat_template", absl::string_view("{{ x }}"));
    });
    ASSERT_OK_AND_ASSIGN(tokenizer, Tokenizer::Create(small.file()));
  }
  EXPECT_THAT(tokenizer->Encode("ab<e>b", true), ElementsAre(3, 0, 2));
  EXPECT_EQ(tokenizer->Decode({{3, 0, 2}}), "ab<e>b");
  ASSERT_OK_AND_ASSIGN(const absl::string_view text,
                       tokenizer->chat_template());
  EXPECT_EQ(text, "{{ x }}");
}

TEST(TokenizerDataTest, OtherModelsAreRefusedByName) {
  // SentencePiece has no merges. What is said is that it is not known.
  const SmallFile small("tokenizer.ggml.model", [](GgufWriter& writer) {
    writer.Add("tokenizer.ggml.model", absl::string_view("llama"));
  });
  EXPECT_THAT(ReadTokenizerData(small.file()),
              IsInvalid("tokenizer.ggml.model: expected \"gpt2\" "
                        "(byte-level BPE), got \"llama\""));
}

TEST(TokenizerDataTest, NamesAKeyThatIsMissing) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    EXPECT_THAT(ReadTokenizerData(SmallFile(key).file()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(key)));
  }
}

TEST(TokenizerDataTest, NamesAKeyWhoseValueIsOfAnotherType) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.add_bos_token",
        "tokenizer.chat_template"}) {
    const SmallFile small(key,
                          [key](GgufWriter& writer) { writer.Add(key, 0.5f); });
    EXPECT_THAT(ReadTokenizerData(small.file()), IsInvalid(key));
  }
}

// There may be so many values that they must not even be read.
TEST(TokenizerDataTest, CountsTypesBeforeItReadsThem) {
  const SmallFile small("tokenizer.ggml.token_type", [](GgufWriter& writer) {
    writer.Add("tokenizer.ggml.token_type",
               std::vector<uint64_t>(5, ~uint64_t{0}));
  });
  EXPECT_THAT(ReadTokenizerData(small.file()),
              IsInvalid("tokenizer.ggml.token_type: expected 4, as many as "
                        "tokenizer.ggml.tokens; got 5"));
}

}  // namespace
}  // namespace blockmgr
