// The texts that a model is measured on: facts hidden in text, questions about
// them and their answers, and text as it goes on.
//
// The tasks are of other kinds than those that answers are judged by elsewhere
// (magic numbers, where somebody lives), so that a profile is not tested on
// what it was measured on.
#ifndef BENCH_EVICT_CALIBRATION_PROMPTS_H_
#define BENCH_EVICT_CALIBRATION_PROMPTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "bench/evict/model_oracle.h"
#include "engine/tokenizer/tokenizer.h"

namespace blockmgr {

// Returns the names of all tasks: "animals", "codes", "prices", "rooms" and
// "text".
std::vector<std::string> CalibrationTasks();

struct CalibrationPromptOptions {
  uint64_t seed = 1;
  int32_t num_contexts = 1;
  int32_t context_tokens = 1024;  // of every context
  int32_t num_queries = 1;        // about every context
  int32_t query_tokens = 32;      // of a query of the task "text"
  // Contexts take turns with them.
  std::vector<std::string> tasks = CalibrationTasks();
};

// Returns num_contexts prompts. `text` are the tokens of a text, out of which
// every context is cut at a place of its own. A context of the task "text" is
// followed by how the text goes on. Any other context is the beginning of a
// chat message with twice as many facts as queries in the text, all at random
// places; a query is the end of the message, a question, and the answer. Equal
// for equal arguments. Errors name the flag (--tasks, --context, --text, or
// --model if the file's chat format is unknown), what was expected and what
// came.
absl::StatusOr<std::vector<ContextPrompt>> MakeCalibrationPrompts(
    const Tokenizer& tokenizer, std::span<const int32_t> text,
    const CalibrationPromptOptions& options);

// Returns a prompt of random tokens below `vocabulary`, for models that have
// no language. Half of a query, rounded up, is a passage of the context; the
// model adds the rest.
ContextPrompt MakeRandomPrompt(int32_t vocabulary, int32_t context,
                               const CalibrationPromptOptions& options);

}  // namespace blockmgr

#endif  // BENCH_EVICT_CALIBRATION_PROMPTS_H_
