#include "bench/serve/chat_prompt.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

// How a format writes one message: before and after the role, and at the end.
struct ChatFormat {
  absl::string_view begin;
  absl::string_view after_role;
  absl::string_view end;
};

constexpr ChatFormat kChatMl = {"<|im_start|>", "\n", "<|im_end|>\n"};
constexpr ChatFormat kLlama3 = {"<|start_header_id|>", "<|end_header_id|>\n\n",
                                "<|eot_id|>"};

}  // namespace

absl::StatusOr<std::string> ChatPrompt(absl::string_view chat_template,
                                       absl::string_view system,
                                       absl::string_view user) {
  const ChatFormat* format = nullptr;
  for (const ChatFormat* known : {&kChatMl, &kLlama3}) {
    if (absl::StrContains(chat_template, known->begin)) format = known;
  }
  if (format == nullptr) {
    return Invalid("tokenizer.chat_template: expected one with ", kChatMl.begin,
                   " or ", kLlama3.begin,
                   ", got another; use --raw and write the whole prompt");
  }
  const auto begin_of = [format](absl::string_view role) {
    return absl::StrCat(format->begin, role, format->after_role);
  };
  std::string prompt;
  if (!system.empty()) {
    absl::StrAppend(&prompt, begin_of("system"), system, format->end);
  }
  absl::StrAppend(&prompt, begin_of("user"), user, format->end,
                  begin_of("assistant"));
  return prompt;
}

}  // namespace blockmgr
