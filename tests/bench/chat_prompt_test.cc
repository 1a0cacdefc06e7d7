#include "bench/serve/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

// The expected prompts are what the published templates give.
TEST(ChatPromptTest, ChatMl) {
  ASSERT_OK_AND_ASSIGN(
      const std::string prompt,
      ChatPrompt("{% for m in messages %}{{'<|im_start|>' + m.role}}",
                 "Be brief.", "Hello?"));
  EXPECT_EQ(prompt,
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHello?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatPromptTest, Llama3) {
  ASSERT_OK_AND_ASSIGN(
      const std::string prompt,
      ChatPrompt("{{'<|start_header_id|>' + m.role}}", "Be brief.", "Hello?"));
  EXPECT_EQ(prompt,
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHello?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatPromptTest, NoSystemMessageIfThereIsNone) {
  ASSERT_OK_AND_ASSIGN(const std::string prompt,
                       ChatPrompt("<|im_start|>", "", "Hello?"));
  EXPECT_EQ(prompt,
            "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatPromptTest, AnotherFormatIsRefused) {
  EXPECT_THAT(ChatPrompt("[INST] {{ m.content }} [/INST]", "", "Hello?"),
              IsInvalid("tokenizer.chat_template: expected one with "
                        "<|im_start|> or <|start_header_id|>"));
}

}  // namespace
}  // namespace blockmgr
