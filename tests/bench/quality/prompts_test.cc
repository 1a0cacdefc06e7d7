#include "bench/quality/prompts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/quality/quality_testing.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kContextTokens = 1601;

QualityPrompt Make(const std::string& task, int32_t num_turns = 1,
                   uint64_t index = 0, uint64_t seed = 0) {
  const PromptSource source = ByteSource();
  auto prompt = MakeQualityPrompt(source, {.task = task,
                                           .num_tokens = kContextTokens,
                                           .num_turns = num_turns,
                                           .index = index,
                                           .seed = seed});
  EXPECT_OK(prompt);
  return *prompt;
}

TEST(PromptsTest, ContextsHaveTheLengthThatIsAskedFor) {
  for (const std::string& task : QualityTasks()) {
    SCOPED_TRACE(task);
    for (uint64_t index = 0; index < 5; ++index) {
      const QualityPrompt prompt = Make(task, 1, index);
      EXPECT_EQ(std::ssize(prompt.context), kContextTokens);
      ASSERT_EQ(prompt.turns.size(), 1u);
      EXPECT_FALSE(prompt.turns[0].question.empty());
      EXPECT_FALSE(prompt.turns[0].answer.empty());
    }
  }
}

TEST(PromptsTest, TheSameKeyGivesTheSamePrompt) {
  for (const std::string& task : QualityTasks()) {
    SCOPED_TRACE(task);
    const QualityPrompt prompt = Make(task);
    EXPECT_EQ(prompt.context, Make(task).context);
    EXPECT_EQ(prompt.turns[0].answer, Make(task).turns[0].answer);
    EXPECT_NE(prompt.context, Make(task, 1, 1).context);
    EXPECT_NE(prompt.context, Make(task, 1, 0, 1).context);
  }
}

// Reads what a context says of the place that a question asks for.
TEST(PromptsTest, NeedlesAreInTheContextWhereTheDepthSays) {
  for (const char* task : {"needle", "multikey"}) {
    const QualityPrompt prompt = Make(task, 3);
    ASSERT_EQ(prompt.turns.size(), 3u);
    const std::string context = TextOf(prompt.context);
    std::set<std::string> leads;
    for (const QualityTurn& turn : prompt.turns) {
      const std::string lead = TextOf(turn.lead);
      leads.insert(lead);
      const std::vector<std::string> words = absl::StrSplit(lead, ' ');
      ASSERT_GT(words.size(), 5u);
      const std::string sentence =
          absl::StrCat(" The special magic number for ", words[5],
                       " is:", TextOf(turn.answer), ".");
      const size_t at = context.find(sentence);
      ASSERT_NE(at, std::string::npos) << sentence;
      EXPECT_EQ(context.find(sentence, at + 1), std::string::npos);
      EXPECT_DOUBLE_EQ(turn.depth, static_cast<double>(at) / kContextTokens);
      EXPECT_THAT(TextOf(turn.question), HasSubstr(words[5]));
    }
    EXPECT_EQ(leads.size(), 3u);
  }
}

TEST(PromptsTest, FactsAreInTheContext) {
  const QualityPrompt prompt = Make("fact", 5);
  const std::string context = TextOf(prompt.context);
  EXPECT_THAT(context, StartsWith("<S>Read the text"));
  for (size_t i = 0; i < 5; ++i) {
    const QualityTurn& turn = prompt.turns[i];
    EXPECT_THAT(context, HasSubstr(TextOf(turn.lead) + TextOf(turn.answer) +
                                   " and works as a "));
    const std::string question = TextOf(turn.question);
    EXPECT_THAT(question, StartsWith("\n\nIn which city does "));
    EXPECT_TRUE(absl::EndsWith(question, " live?</U><A>"));
    EXPECT_EQ(TextOf(turn.follow_up), ".</A><U>" + question.substr(2));
  }
}

TEST(PromptsTest, DepthsAreSpreadOverTheContext) {
  std::map<int, int> parts;
  for (uint64_t index = 0; index < 200; ++index) {
    ++parts[static_cast<int>(Make("needle", 1, index).turns[0].depth * 4)];
  }
  for (int part = 0; part < 4; ++part) EXPECT_GT(parts[part], 25) << part;
}

TEST(PromptsTest, AllValuesAreInTheContext) {
  const QualityPrompt prompt = Make("multivalue");
  const std::string context = TextOf(prompt.context);
  const std::vector<std::string> numbers =
      absl::StrSplit(TextOf(prompt.turns[0].answer).substr(1), ", ");
  EXPECT_EQ(numbers.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
  for (const std::string& number : numbers) {
    EXPECT_THAT(context, HasSubstr(" is: " + number + "."));
  }
}

TEST(PromptsTest, AChainOfVariablesHasOneValue) {
  const QualityPrompt prompt = Make("tracking");
  const std::string context = TextOf(prompt.context);
  const std::vector<std::string> names =
      absl::StrSplit(TextOf(prompt.turns[0].answer).substr(1), ", ");
  ASSERT_EQ(names.size(), 3u);
  const std::string first = "VAR " + names[0] + " = ";
  const std::string value =
      context.substr(context.find(first) + first.size(), 5);
  EXPECT_THAT(TextOf(prompt.turns[0].question), HasSubstr(value));
  EXPECT_THAT(context, HasSubstr("VAR " + names[1] + " = VAR " + names[0]));
  EXPECT_THAT(context, HasSubstr("VAR " + names[2] + " = VAR " + names[1]));
}

// Returns how much more often the rarest common word is there than the most
// frequent other one.
int LeadOfCommonWords(const QualityPrompt& prompt) {
  const std::string context = TextOf(prompt.context);
  std::map<std::string, int> counts;
  const std::string list = context.substr(context.find('\n') + 2);
  for (const absl::string_view word : absl::StrSplit(list, ' ')) {
    ++counts[std::string(word)];
  }
  const std::vector<std::string> asked =
      absl::StrSplit(TextOf(prompt.turns[0].answer).substr(1), ", ");
  EXPECT_EQ(asked.size(), 3u);
  int least = 1000;
  for (const std::string& word : asked) {
    least = std::min(least, counts[word]);
    counts.erase(word);
  }
  int most = 0;
  for (const auto& [word, count] : counts) most = std::max(most, count);
  return least - most;
}

TEST(PromptsTest, TheCommonWordsAreTheMostCommon) {
  const PromptSource source = ByteSource();
  for (const int32_t num_tokens : {1601, 801, 401, 321, 257, 241}) {
    for (uint64_t index = 0; index < 20; ++index) {
      ASSERT_OK_AND_ASSIGN(const QualityPrompt prompt,
                           MakeQualityPrompt(source, {.task = "words",
                                                      .num_tokens = num_tokens,
                                                      .index = index}));
      EXPECT_EQ(std::ssize(prompt.context), num_tokens);
      EXPECT_GT(LeadOfCommonWords(prompt), 0)
          << num_tokens << " tokens, prompt " << index;
    }
  }
}

TEST(PromptsTest, TextGoesOn) {
  const PromptSource source = ByteSource();
  std::string all;
  for (int i = 0; i < 2; ++i) {
    for (const std::string& sentence : source.filler.sentences) all += sentence;
  }
  const QualityPrompt prompt = Make("continuation");
  EXPECT_EQ(prompt.turns[0].answer.size(), 64u);
  EXPECT_THAT(
      all, HasSubstr(TextOf(prompt.context) + TextOf(prompt.turns[0].question) +
                     TextOf(prompt.turns[0].answer)));
}

TEST(PromptsTest, TextGoesOnAsLongAsAskedFor) {
  ASSERT_OK_AND_ASSIGN(
      const QualityPrompt prompt,
      MakeQualityPrompt(ByteSource(), {.task = "continuation",
                                       .num_tokens = 801,
                                       .continuation_tokens = 700}));
  EXPECT_EQ(prompt.context.size(), 801u);
  EXPECT_EQ(prompt.turns[0].answer.size(), 700u);
}

TEST(PromptsTest, RefusesContextsThatAreTooShort) {
  const PromptSource source = ByteSource();
  EXPECT_THAT(MakeQualityPrompt(source, {.task = "fact", .num_tokens = 40}),
              IsInvalid("--lengths"));
  EXPECT_THAT(MakeQualityPrompt(source, {.task = "words", .num_tokens = 40}),
              IsInvalid("--lengths"));
  EXPECT_THAT(MakeQualityPrompt(source, {.task = "poems", .num_tokens = 400}),
              IsInvalid("--tasks"));
}

TEST(PromptsTest, ReadsPromptsOfAFile) {
  const TempFolder folder;
  const std::string name = folder.Write(
      "prompts.jsonl",
      "{\"context\": \"It rains.\", \"questions\": [\"Sun?\", \"Rain?\"], "
      "\"answers\": [\"No\", \"Yes\"]}\n\n");
  ASSERT_OK_AND_ASSIGN(const std::vector<QualityPrompt> prompts,
                       ReadQualityPrompts(ByteSource(), name));
  ASSERT_EQ(prompts.size(), 1u);
  EXPECT_EQ(TextOf(prompts[0].context), "<S>It rains.");
  ASSERT_EQ(prompts[0].turns.size(), 2u);
  EXPECT_EQ(TextOf(prompts[0].turns[0].question), "\n\nSun?</U><A>");
  EXPECT_EQ(TextOf(prompts[0].turns[1].follow_up), "</A><U>Rain?</U><A>");
  EXPECT_EQ(TextOf(prompts[0].turns[1].answer), "Yes");
}

TEST(PromptsTest, ErrorsOfAFileNameLineAndField) {
  const TempFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"no JSON", "context"},
      {"{\"questions\": [\"a\"], \"answers\": [\"b\"]}", "context"},
      {"{\"context\": \"c\", \"answers\": [\"b\"]}", "questions"},
      {"{\"context\": \"c\", \"questions\": [\"a\"], \"answers\": [1]}",
       "answers"},
      {"{\"context\": \"c\", \"questions\": [\"a\"], \"answers\": []}",
       "answers"},
      {"{\"context\": \"c\", \"questions\": [\"a\"], \"answers\": [\"\"]}",
       "answers[0]"},
      {"{\"context\": \"c\", \"questions\": [\"a\", \"b\"], \"answers\": "
       "[\"b\"]}",
       "expected 2"}};
  for (const auto& [line, field] : cases) {
    const std::string name = folder.Write("prompts.jsonl", line);
    EXPECT_THAT(ReadQualityPrompts(ByteSource(), name),
                IsInvalid("line 1", field));
  }
  EXPECT_THAT(ReadQualityPrompts(ByteSource(), folder.File("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--prompts")));
  EXPECT_THAT(ReadQualityPrompts(ByteSource(), folder.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("a folder")));
  EXPECT_FALSE(ReadQualityPrompts(ByteSource(), folder.Write("e", "")).ok());
}

TEST(PromptsTest, ChatTokensOfTemplates) {
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens chat,
      MakeChatTokens("{{'<|im_start|>'}}", "Be kind.", BytesOf));
  EXPECT_EQ(TextOf(chat.head),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n");
  EXPECT_EQ(TextOf(chat.close), "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(TextOf(chat.next), "<|im_end|>\n<|im_start|>user\n");
  ASSERT_OK_AND_ASSIGN(
      const ChatTokens llama,
      MakeChatTokens("{{'<|start_header_id|>'}}", "", BytesOf));
  EXPECT_EQ(TextOf(llama.head), "<|start_header_id|>user<|end_header_id|>\n\n");
  EXPECT_EQ(TextOf(llama.next),
            "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n");
  EXPECT_FALSE(MakeChatTokens("{{ messages }}", "", BytesOf).ok());
}

}  // namespace
}  // namespace blockmgr
