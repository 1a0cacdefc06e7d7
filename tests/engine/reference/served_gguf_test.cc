#include "engine/reference/served_gguf.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/gguf/gguf_file.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

absl::StatusOr<ServedModel> Describe(
    const GgufWriter& writer, std::string* tokenizer_error,
    const std::string& path = "folder/Some-1B.Q4_1.gguf") {
  const std::string bytes = writer.Finish();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_OK(file);
  return DescribeGguf(**file, path, tokenizer_error);
}

TEST(ServedGgufTest, TellsWhatTheFileSays) {
  GgufWriter writer;
  writer.Add("general.architecture", "qwen2");
  writer.Add("qwen2.context_length", uint32_t{4096});
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "qwen2");
  writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{});
  writer.Add("tokenizer.ggml.bos_token_id", uint32_t{1});
  std::string error = "none";
  ASSERT_OK_AND_ASSIGN(const ServedModel model, Describe(writer, &error));
  EXPECT_THAT(error, IsEmpty());
  EXPECT_EQ(model.name, "Some-1B.Q4_1");
  EXPECT_EQ(model.model_type, "qwen2");
  EXPECT_THAT(model.architectures, ElementsAre("Qwen2ForCausalLM"));
  EXPECT_EQ(model.context_tokens, 4096);
  EXPECT_EQ(model.bos_token_id, 1);
  EXPECT_EQ(model.pad_token_id, std::nullopt);
  EXPECT_THAT(model.tokenizer_zip, StartsWith("PK\x03\x04"));
}

TEST(ServedGgufTest, AModelWithoutOurTokenizerIsServedWithoutOne) {
  GgufWriter writer;
  writer.Add("general.architecture", "gemma3");
  writer.Add("gemma3.context_length", uint32_t{4096});
  writer.Add("tokenizer.ggml.model", "llama");
  std::string error;
  ASSERT_OK_AND_ASSIGN(const ServedModel model, Describe(writer, &error));
  EXPECT_THAT(error, HasSubstr("tokenizer.ggml.model"));
  EXPECT_THAT(model.tokenizer_zip, IsEmpty());
  EXPECT_EQ(model.model_type, "gemma3_text");
}

// The daemon would refuse the attachment.
TEST(ServedGgufTest, ATokenizerThatIsTooLargeIsLeftOut) {
  GgufWriter writer;
  writer.Add("general.architecture", "qwen2");
  writer.Add("qwen2.context_length", uint32_t{4096});
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "qwen2");
  writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{});
  // A zip needs 6 of 8 bits for such text.
  std::string text(size_t{21} << 20, '\0');
  Rng rng(1);
  for (char& c : text) c = static_cast<char>('0' + rng() % 64);
  writer.Add("tokenizer.chat_template", text);
  std::string error;
  ASSERT_OK_AND_ASSIGN(const ServedModel model, Describe(writer, &error));
  EXPECT_THAT(error, HasSubstr("expected at most 15728640 bytes, got 1"));
  EXPECT_THAT(model.tokenizer_zip, IsEmpty());
}

// A file may have any name, but the daemon refuses a message with one that is
// not UTF-8.
TEST(ServedGgufTest, TheNameIsUtf8) {
  GgufWriter writer;
  writer.Add("general.architecture", "gemma3");
  writer.Add("gemma3.context_length", uint32_t{4096});
  std::string error;
  ASSERT_OK_AND_ASSIGN(
      const ServedModel model,
      Describe(writer, &error, "f\xFF/\xFE\xFFmod\xC3\xA8le\xE2\x82.gguf"));
  EXPECT_EQ(model.name, "\uFFFDmod\u00E8le\uFFFD");
}

}  // namespace
}  // namespace blockmgr
