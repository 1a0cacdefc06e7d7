// The prompt that a chat model expects around a question.
#ifndef BENCH_SERVE_CHAT_PROMPT_H_
#define BENCH_SERVE_CHAT_PROMPT_H_

#include <string>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// Returns the prompt that asks `user` after `system`, which may be empty, and
// lets the assistant answer. The format is recognized by the markers in the
// model's template, which is Jinja and is not run: ChatML (<|im_start|>, as in
// SmolLM2 and Qwen2) and Llama 3 (<|start_header_id|>). Errs with
// InvalidArgument for another template.
absl::StatusOr<std::string> ChatPrompt(absl::string_view chat_template,
                                       absl::string_view system,
                                       absl::string_view user);

}  // namespace blockmgr

#endif  // BENCH_SERVE_CHAT_PROMPT_H_
