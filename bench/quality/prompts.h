// Prompts with questions whose answers are known: what the quality of a
// compressed cache is measured with.
//
// A prompt is a context and turns. Everything is tokens. A context can be
// compressed before a question is known: its tokens do not depend on the
// question. The same task, length, index and seed give the same prompt.
//
//   needle        five-digit numbers, hidden in text under names of two words
//   fact          who lives in which city, one sentence each
//   multikey      as needle, among four numbers that nobody asks for
//   multivalue    three numbers of one name, all asked for
//   tracking      a chain of three variables, all that have a value asked for
//   words         the three most common words of a list
//   continuation  text that goes on; no question and no chat
//
// multikey, multivalue, tracking and words are kinds of RULER (Hsieh et al.,
// arXiv 2404.06654, section 3), with texts of our own.
//
// Thread-compatible.
#ifndef BENCH_QUALITY_PROMPTS_H_
#define BENCH_QUALITY_PROMPTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "bench/quality/filler.h"

namespace blockmgr {

struct QualityTurn {
  // The question right behind the context, up to where the model's answer
  // begins; and the same question as a further turn, behind another answer.
  std::vector<int32_t> question;
  std::vector<int32_t> follow_up;
  // The first words of the answer, which are given. May be empty.
  std::vector<int32_t> lead;
  std::vector<int32_t> answer;  // at least one token
  // The place in the context of what the question asks for, in [0, 1). Below 0
  // if there is no single place.
  double depth = -1.0;
};

struct QualityPrompt {
  std::vector<int32_t> context;
  std::vector<QualityTurn> turns;  // at least one
};

// ChatTokens says how a chat model writes turns, in tokens.
struct ChatTokens {
  std::vector<int32_t> head;   // system text, up to the user's text
  std::vector<int32_t> close;  // behind the user's text, up to the answer
  std::vector<int32_t> next;   // behind an answer, up to the user's next text
};

using TextEncoder = std::function<std::vector<int32_t>(absl::string_view)>;

// Returns the tokens around the turns of the model whose chat template this is.
// `encode` finds special tokens. Errs as ChatPrompt does.
absl::StatusOr<ChatTokens> MakeChatTokens(absl::string_view chat_template,
                                          absl::string_view system,
                                          const TextEncoder& encode);

// The material of all prompts. The functions below borrow it.
struct PromptSource {
  Filler filler;
  ChatTokens chat;
  TextEncoder encode;  // of text without special tokens
};

// PromptKey says which prompt to make.
struct PromptKey {
  std::string task;
  int32_t num_tokens = 0;  // of the context
  int32_t num_turns = 1;   // at least 1; needle, fact and multikey have so many
  int32_t continuation_tokens = 64;  // at least 1
  uint64_t index = 0;
  uint64_t seed = 0;
};

// The names of the tasks.
const std::vector<std::string>& QualityTasks();

// Makes a prompt. Errs if the task is unknown, if the context is too short for
// what it must contain.
absl::StatusOr<QualityPrompt> MakeQualityPrompt(const PromptSource& source,
                                                const PromptKey& key);

// Reads prompts from lines of JSON: {"context": "..", "questions": ["..", ..],
// "answers": ["..", ..]}. `name` is that of the file. Errors name the line, the
// field, what was expected and what came.
absl::StatusOr<std::vector<QualityPrompt>> ReadQualityPrompts(
    const PromptSource& source, const std::string& name);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_PROMPTS_H_
