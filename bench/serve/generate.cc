#include "bench/serve/generate.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include "bench/metrics.h"
#include "bench/serve/chat_prompt.h"
#include "bench/serve/client.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/server/flag_checks.h"
#include "wire/request_wire.h"

namespace blockmgr {
namespace {

// How often a broken stream is looked for.
constexpr std::chrono::seconds kLook{1};

// The answers, as their tokens arrive. Thread-safe. Prints the text of a single
// answer at once. The tokens that end an answer are no text.
class Answers {
 public:
  Answers(const Tokenizer* tokenizer, size_t num_answers, bool prints)
      : tokenizer_(*tokenizer), texts_(num_answers), prints_(prints) {}

  void Add(int64_t index, std::span<const uint32_t> tokens) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const uint32_t token : tokens) {
      const auto id = static_cast<int32_t>(token);
      if (std::ranges::count(tokenizer_.end_tokens(), id) > 0) continue;
      const std::string text = tokenizer_.Decode({&id, 1});
      texts_[static_cast<size_t>(index)] += text;
      if (!prints_) continue;
      absl::PrintF("%s", text);
      std::fflush(stdout);
    }
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::move(texts_);
  }

 private:
  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::vector<std::string> texts_;
  const bool prints_;
};

absl::StatusOr<std::vector<std::string>> Questions(
    const GenerateOptions& options) {
  std::vector<std::string> questions = options.prompts;
  for (const std::string& name : options.prompt_files) {
    absl::StatusOr<std::string> question = ReadFile(name);
    if (!question.ok()) {
      return absl::NotFoundError(absl::StrCat("prompt-file: cannot read ", name,
                                              ": ",
                                              question.status().message()));
    }
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) {
    return absl::InvalidArgumentError(
        "prompt: expected at least one, or a --prompt-file");
  }
  return questions;
}

absl::StatusOr<std::vector<int32_t>> Encode(const GenerateOptions& options,
                                            const Tokenizer& tokenizer,
                                            const std::string& question) {
  std::vector<int32_t> tokens;
  if (tokenizer.begin_token().has_value()) {
    tokens.push_back(*tokenizer.begin_token());
  }
  std::string prompt = question;
  if (!options.raw) {
    BM_ASSIGN_OR_RETURN(const absl::string_view chat,
                        tokenizer.chat_template());
    BM_ASSIGN_OR_RETURN(prompt, ChatPrompt(chat, options.system, question));
  }
  const std::vector<int32_t> encoded =
      tokenizer.Encode(prompt, /*parse_special=*/true);
  tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  if (tokens.empty()) {
    return absl::InvalidArgumentError("prompt: expected text, got none");
  }
  return tokens;
}

absl::StatusOr<std::vector<v1::SubmitRequest>> Requests(
    const GenerateOptions& options, const Tokenizer& tokenizer) {
  BM_ASSIGN_OR_RETURN(const RequestEviction eviction,
                      ResolveEviction(options.eviction));
  BM_ASSIGN_OR_RETURN(const std::vector<std::string> questions,
                      Questions(options));
  std::vector<v1::SubmitRequest> requests;
  for (const std::string& question : questions) {
    BM_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                        Encode(options, tokenizer, question));
    v1::SubmitRequest& request = requests.emplace_back();
    request.mutable_prompt_token_ids()->Add(tokens.begin(), tokens.end());
    request.mutable_stop_token_ids()->Add(tokenizer.end_tokens().begin(),
                                          tokenizer.end_tokens().end());
    request.set_max_tokens(options.max_tokens);
    // Set in any case: none is none, whatever the daemon's default.
    ToProto(eviction, request.mutable_eviction());
  }
  return requests;
}

nlohmann::ordered_json AnswerJson(const RequestRecord& record,
                                  std::string text) {
  nlohmann::ordered_json answer;
  answer["text"] = std::move(text);
  answer["prompt_tokens"] = record.prompt_tokens;
  answer["cached_tokens"] = record.cached_tokens;
  answer["output_tokens"] = record.tokens_s.size();
  if (!record.tokens_s.empty() && record.sent_s.has_value()) {
    answer["ttft_s"] = record.tokens_s.front() - *record.sent_s;
    answer["e2el_s"] = record.tokens_s.back() - *record.sent_s;
  }
  if (!record.completed) answer["error"] = record.failure.ToString();
  return answer;
}

void PrintText(const nlohmann::ordered_json& report, bool is_printed) {
  for (const auto& answer : report["answers"]) {
    if (!is_printed) {
      absl::PrintF("%s\n", answer["text"].get<std::string>());
    }
    absl::FPrintF(stderr, "[%d prompt tokens, %d of them cached; %d tokens",
                  answer["prompt_tokens"].get<int>(),
                  answer["cached_tokens"].get<int>(),
                  answer["output_tokens"].get<int>());
    if (answer.contains("ttft_s")) {
      absl::FPrintF(stderr, ", the first after %.2f s, the last after %.2f s",
                    answer["ttft_s"].get<double>(),
                    answer["e2el_s"].get<double>());
    }
    absl::FPrintF(stderr, "]\n");
    if (answer.contains("error")) {
      absl::FPrintF(stderr, "blockmgr-bench: %s\n",
                    answer["error"].get<std::string>());
    }
  }
  const auto& evicted = report["evicted"];
  if (evicted.is_null()) {
    absl::FPrintF(stderr, "[%s]\n", report["note"].get<std::string>());
    return;
  }
  if (evicted["entries"].get<uint64_t>() == 0) return;
  absl::FPrintF(
      stderr, "[evicted %d entries: %d blocks, %.1f MB, back in the pool]\n",
      evicted["entries"].get<uint64_t>(), evicted["blocks"].get<uint64_t>(),
      evicted["bytes"].get<double>() / 1e6);
}

}  // namespace

void AddGenerateFlags(CLI::App* app, GenerateOptions* options) {
  AddDaemonFlags(app, &options->daemon);
  app->add_option("--model", options->model,
                  "The model's GGUF file, for its tokenizer")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--prompt", options->prompts,
                  "A question; may be given more than once");
  app->add_option("--prompt-file", options->prompt_files,
                  "A file with a question; may be given more than once");
  app->add_option("--system", options->system,
                  "What the model is told before the question");
  app->add_flag("--raw", options->raw,
                "Prompts are complete: no chat format is put around them");
  app->add_option("--max-tokens", options->max_tokens,
                  "Most tokens of an answer")
      ->check(CLI::Range(1, INT32_MAX))
      ->capture_default_str();
  app->add_flag("--json", options->json,
                "Print answers, times and what was evicted as JSON");
  AddEvictionFlags(app, &options->eviction);
}

absl::StatusOr<int64_t> RunGenerate(const GenerateOptions& options) {
  if (options.raw && !options.system.empty()) {
    return absl::InvalidArgumentError("system: has no effect with --raw");
  }
  BM_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file,
                      GgufFile::Open(options.model));
  BM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Create(*file));
  BM_ASSIGN_OR_RETURN(std::vector<v1::SubmitRequest> requests,
                      Requests(options, tokenizer));
  BM_ASSIGN_OR_RETURN(const std::string address, AddressOf(options.daemon));
  std::vector<RequestRecord> records(requests.size());
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].prompt_tokens = requests[i].prompt_token_ids_size();
  }
  const bool prints = !options.json && requests.size() == 1;
  Answers answers(&tokenizer, requests.size(), prints);
  LoadClient client(
      address, std::move(records),
      [&answers](int64_t index, std::span<const uint32_t> tokens) {
        answers.Add(index, tokens);
      });
  BM_RETURN_IF_ERROR(client.WaitUntilReady(
      std::chrono::duration<double>(options.daemon.ready_check_timeout_s)));
  BM_ASSIGN_OR_RETURN(const v1::GetStatsResponse before,
                      client.GetStats(/*reset_peaks=*/false));
  BM_RETURN_IF_ERROR(client.Open());
  for (size_t i = 0; i < requests.size(); ++i) {
    client.Submit(static_cast<int64_t>(i), std::move(requests[i]));
  }
  while (
      client.WaitUntilBelow(1, LoadClient::Clock::now() + kLook).unfinished() >
          0 &&
      !client.broken()) {
  }
  const absl::StatusOr<v1::GetStatsResponse> after =
      client.GetStats(/*reset_peaks=*/false);
  client.Close();
  if (prints) absl::PrintF("\n");
  nlohmann::ordered_json report;
  std::vector<std::string> texts = answers.Take();
  const std::vector<RequestRecord> done = client.TakeRecords();
  for (size_t i = 0; i < done.size(); ++i) {
    report["answers"].push_back(AnswerJson(done[i], std::move(texts[i])));
  }
  report["evicted"] = nullptr;
  const std::string why_not = WhyIncomparable(before, after);
  if (why_not.empty()) {
    report["evicted"] = {
        {"entries", after->evicted_entries() - before.evicted_entries()},
        {"blocks", after->evicted_blocks() - before.evicted_blocks()},
        {"bytes", after->evicted_bytes() - before.evicted_bytes()}};
  } else {
    report["note"] =
        absl::StrCat("what the daemon evicted is not known: ", why_not);
  }
  if (options.json) {
    // An answer may end inside a character.
    absl::PrintF("%s\n",
                 report.dump(2, ' ', false,
                             nlohmann::ordered_json::error_handler_t::replace));
  } else {
    PrintText(report, prints);
  }
  return std::ranges::count(done, false, &RequestRecord::completed);
}

}  // namespace blockmgr
