#include "bench/evict/calibration_prompts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/model_file.h"
#include "tests/bench/evict/small_model.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// clang 14 cannot compile std::ranges::search of libstdc++ 12.
bool HasTokens(const std::vector<int32_t>& tokens,
               const std::vector<int32_t>& part) {
  return std::search(tokens.begin(), tokens.end(), part.begin(), part.end()) !=
         tokens.end();
}

class CalibrationPromptsTest : public testing::Test {
 protected:
  void SetUp() override {
    const TempFolder folder;
    WriteSmallModel(folder.File("model.gguf"));
    WriteSmallText(folder.File("text"), 200);
    ASSERT_OK_AND_ASSIGN(file_, OpenModel(folder.File("model.gguf"), 1));
    ASSERT_OK_AND_ASSIGN(tokenizer_, OpenTokenizer(file_));
    ASSERT_OK_AND_ASSIGN(text_, ReadTexts(*tokenizer_, {folder.File("text")}));
  }

  absl::StatusOr<std::vector<ContextPrompt>> Make() const {
    return MakeCalibrationPrompts(*tokenizer_, text_, options_);
  }

  ModelFile file_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<int32_t> text_;
  CalibrationPromptOptions options_ = {.seed = 1,
                                       .num_contexts = 10,
                                       .context_tokens = 700,
                                       .num_queries = 2,
                                       .query_tokens = 40};
};

TEST_F(CalibrationPromptsTest, ContextsTakeTurnsWithTheTasks) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> prompts, Make());
  ASSERT_THAT(prompts, SizeIs(10));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(prompts[i].task, CalibrationTasks()[i % 5]);
    EXPECT_THAT(prompts[i].context, SizeIs(700));
    EXPECT_EQ(prompts[i].answer_tokens, 0);
  }
  options_.tasks = {"text", "rooms"};
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> other, Make());
  EXPECT_EQ(other[2].task, "text");
  EXPECT_EQ(other[3].task, "rooms");
}

// A query is the end of the message, a question and an answer that the context
// has.
TEST_F(CalibrationPromptsTest, AnswersAreInTheContext) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> prompts, Make());
  for (const ContextPrompt& prompt : prompts) {
    if (prompt.task == "text") continue;
    const std::string context = tokenizer_->Decode(prompt.context);
    EXPECT_THAT(context, StartsWith("<|im_start|>system\n"));
    ASSERT_THAT(prompt.queries, SizeIs(2));
    for (const std::vector<int32_t>& tokens : prompt.queries) {
      const std::string query = tokenizer_->Decode(tokens);
      const std::string turn = "?<|im_end|>\n<|im_start|>assistant\n";
      const size_t at = query.find(turn);
      ASSERT_NE(at, std::string::npos) << query;
      const std::string answer = query.substr(at + turn.size());
      EXPECT_THAT(context, HasSubstr(absl::StrCat(" ", answer)));
      EXPECT_TRUE(absl::EndsWith(answer, ".")) << answer;
      // The subject of the question is that of the answer.
      const std::string question = query.substr(0, at);
      const std::string subject = question.substr(question.find("the ") + 4, 4);
      EXPECT_THAT(query.substr(2), HasSubstr(subject));
    }
    EXPECT_NE(prompt.queries[0], prompt.queries[1]);
  }
}

TEST_F(CalibrationPromptsTest, TextGoesOnAsItDoes) {
  options_.tasks = {"text"};
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> prompts, Make());
  std::set<std::vector<int32_t>> contexts;
  for (const ContextPrompt& prompt : prompts) {
    ASSERT_THAT(prompt.queries, SizeIs(1));
    ASSERT_THAT(prompt.queries[0], SizeIs(40));
    std::vector<int32_t> all = prompt.context;
    all.insert(all.end(), prompt.queries[0].begin(), prompt.queries[0].end());
    EXPECT_TRUE(HasTokens(text_, all));
    contexts.insert(prompt.context);
  }
  EXPECT_GT(contexts.size(), 5u);
}

TEST_F(CalibrationPromptsTest, SeedsAreOtherPrompts) {
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> one, Make());
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> same, Make());
  options_.seed = 2;
  ASSERT_OK_AND_ASSIGN(const std::vector<ContextPrompt> other, Make());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].context, same[i].context);
    EXPECT_EQ(one[i].queries, same[i].queries);
    EXPECT_NE(one[i].context, other[i].context);
  }
}

TEST_F(CalibrationPromptsTest, ErrorsNameTheFlag) {
  options_.tasks = {"text", "dreams"};
  EXPECT_THAT(Make(), IsInvalid("--tasks: expected names among animals, codes",
                                "got 'dreams'"));
  options_.tasks = {"rooms"};
  options_.context_tokens = 100;
  EXPECT_THAT(Make(), IsInvalid("--context: expected at least", "got 100"));
  options_.context_tokens = 60'000;
  EXPECT_THAT(Make(),
              IsInvalid("--text: expected at least 60040 tokens", "got"));
  options_.context_tokens = 700;
  options_.num_queries = 13;
  EXPECT_THAT(Make(),
              IsInvalid("--num-queries: expected at most 12", "got 13"));
}

TEST(RandomPromptTest, QuestionsArePassagesOfTheContext) {
  CalibrationPromptOptions options;
  options.context_tokens = 40;
  options.num_queries = 3;
  options.query_tokens = 9;
  const ContextPrompt prompt = MakeRandomPrompt(64, 0, options);
  EXPECT_THAT(prompt.context, SizeIs(40));
  EXPECT_EQ(prompt.answer_tokens, 4);
  ASSERT_THAT(prompt.queries, SizeIs(3));
  for (const std::vector<int32_t>& query : prompt.queries) {
    EXPECT_THAT(query, SizeIs(5));
    EXPECT_TRUE(HasTokens(prompt.context, query));
  }
  EXPECT_NE(MakeRandomPrompt(64, 1, options).context, prompt.context);
}

}  // namespace
}  // namespace blockmgr
