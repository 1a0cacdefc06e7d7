#include "scheduler/server/vllm_generate.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "scheduler/server/grpc_status.h"
#include "wire/request_wire.h"

namespace blockmgr {
namespace {

namespace engine = ::vllm::grpc::engine;

// The most tokens of a chunk. With log-probabilities, a token takes up to 201
// bytes. Clients take 4 MiB by default.
constexpr size_t kMaxChunkTokens = 4096;

// Turns "[3].token_id: expected .." into "[50256]: expected ..". The scheduler
// has a list of tokens, and the call has a map with tokens as keys.
std::string NameBias(absl::string_view text,
                     const std::vector<int32_t>& tokens) {
  const size_t end = text.find(']');
  size_t index = 0;
  if (!absl::StartsWith(text, "[") || end == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(1, end - 1), &index) ||
      index >= tokens.size()) {
    return std::string(text);
  }
  const size_t colon = text.find(':', end);
  return absl::StrCat(
      "[", tokens[index], "]",
      colon == absl::string_view::npos ? "" : text.substr(colon));
}

// Replaces the scheduler's names of fields by those of the call. `biased` has
// the tokens of logit_bias in order.
absl::Status NameFields(const absl::Status& status,
                        const std::vector<int32_t>& biased) {
  absl::string_view text = status.message();
  const auto rename = [&status](absl::string_view field,
                                absl::string_view rest) {
    return absl::Status(status.code(), absl::StrCat(field, rest));
  };
  if (absl::ConsumePrefix(&text, "sampling.logit_bias")) {
    return rename("sampling_params.logit_bias", NameBias(text, biased));
  }
  if (absl::ConsumePrefix(&text, "sampling.")) {
    return rename("sampling_params.", text);
  }
  if (absl::StartsWith(text, "max_tokens:") ||
      absl::StartsWith(text, "stop_token_ids")) {
    return rename("sampling_params.", text);
  }
  return NamePrompt(status, "tokenized.input_ids");
}

const char* ToText(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kFailed:
      break;
  }
  return "error";
}

// Row `row` has the token itself, then the most likely ones.
struct Row {
  std::span<const int32_t> tokens;
  std::span<const float> logprobs;
};
Row RowAt(const TokenLogProbs& rows, size_t row) {
  const auto width = size_t{1} + static_cast<size_t>(rows.num_top);
  return {std::span(rows.tokens).subspan(row * width, width),
          std::span(rows.logprobs).subspan(row * width, width)};
}

void AddTop(const Row& row, engine::TopLogProbs* proto) {
  for (size_t i = 1; i < row.tokens.size(); ++i) {
    proto->add_token_ids(static_cast<uint32_t>(row.tokens[i]));
    proto->add_values(row.logprobs[i]);
  }
}

// Appends rows to `to`, whose first row is about the token `first`. Returns
// false if rows are missing in between, because an engine left some out.
bool Append(const TokenLogProbs& from, int32_t first, TokenLogProbs* to) {
  if (from.first_index != first + to->num_rows()) return false;
  to->num_top = from.num_top;
  to->tokens.insert(to->tokens.end(), from.tokens.begin(), from.tokens.end());
  to->logprobs.insert(to->logprobs.end(), from.logprobs.begin(),
                      from.logprobs.end());
  return true;
}

}  // namespace

GenerateStream::GenerateStream(CoreThread* core, Worker* worker,
                               std::string session, int64_t max_pending_bytes,
                               const absl::StatusOr<GenerateCall>& call)
    : TokenStream(core, worker, std::move(session), max_pending_bytes,
                  /*writes_at_end=*/!call.ok() || !call->stream),
      streams_(call.ok() && call->stream) {
  if (!call.ok()) return;
  const Request& first = call->request;
  num_prompt_tokens_ = static_cast<uint32_t>(first.prompt.size());
  if (first.sampling->prompt_logprobs.has_value()) prompt_ = first.prompt;
  stop_token_ids_ = first.stop_token_ids;
  std::ranges::sort(stop_token_ids_);
  stop_ = first.sampling->stop;
  answers_.resize(static_cast<size_t>(call->num_answers));
}

void GenerateStream::Start(absl::StatusOr<GenerateCall> call) {
  Begin();
  if (!call.ok()) {
    End(ToGrpc(call.status()));
    return;
  }
  const auto self =
      std::static_pointer_cast<GenerateStream>(shared_from_this());
  std::vector<int32_t> biased;
  for (const LogitBias& bias : call->request.sampling->logit_bias) {
    biased.push_back(bias.token);
  }
  core()->Post(GenerateCommand{
      session(), self, std::move(call->request), call->num_answers,
      [self, biased = std::move(biased)](const absl::Status& status) {
        self->OnOpened(NameFields(status, biased), nullptr);
      },
      call->default_eviction, call->all_tokens});
}

const google::protobuf::Message* GenerateStream::NextMessage() {
  while (has_entry()) {
    const int32_t index = entry().stream->index;
    Answer& answer = answers_[static_cast<size_t>(index)];
    if (!answer.has_ended) {
      next_output_ = answer.outputs.size();
      TakeEntries(index, &answer);
    }
    if (lacks_rows_) {
      End(grpc::Status(grpc::StatusCode::INTERNAL,
                       "the engine has left out log-probabilities of tokens "
                       "that it has sent"));
      return nullptr;
    }
    if (streams_ && next_output_ < answer.outputs.size()) {
      FillChunk(index, &answer);
      next_output_ = answer.outputs.size();
      return &message_;
    }
    if (!answer.has_ended) continue;
    // Removes the entry that ends the answer.
    PopEntry();
    if (answer.finish.reason == FinishReason::kFailed) {
      End(ToGrpc(answer.finish.status));
      return nullptr;
    }
    FillComplete(index, &answer);
    ++num_ended_;
    return &message_;
  }
  if (HeldBytes() > max_pending_bytes()) {
    End(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("more than ", max_pending_bytes(),
                     " bytes of tokens wait for the end of this call")));
  }
  return nullptr;
}

int64_t GenerateStream::HeldBytes() const {
  constexpr int64_t kTokenBytes = sizeof(int32_t);
  constexpr int64_t kLogProbBytes = sizeof(int32_t) + sizeof(float);
  int64_t bytes = kLogProbBytes * std::ssize(prompt_rows_.tokens);
  for (const Answer& answer : answers_) {
    bytes += kTokenBytes * std::ssize(answer.outputs) +
             kLogProbBytes * std::ssize(answer.rows.tokens);
  }
  return bytes;
}

void GenerateStream::TakeEntries(int32_t index, Answer* answer) {
  const RequestStream* const stream = entry().stream.get();
  const size_t end = next_output_ + (TellsPrompt(index) ? 1 : kMaxChunkTokens);
  for (; has_entry() && entry().stream.get() == stream; PopEntry()) {
    const Entry& taken = entry();
    if (taken.finish != nullptr) {
      // The entry stays, so that the stream sees the end again after the last
      // chunk.
      answer->has_ended = true;
      answer->finish = *taken.finish;
      return;
    }
    if (taken.logprobs == nullptr) {
      if (streams_ && answer->outputs.size() == end) return;
      answer->outputs.push_back(taken.token);
    } else {
      // The first token of a prompt has no row.
      lacks_rows_ |= !(taken.logprobs->of_prompt
                           ? Append(taken.logprobs->logprobs, 1, &prompt_rows_)
                           : Append(taken.logprobs->logprobs, answer->first_row,
                                    &answer->rows));
    }
  }
}

void GenerateStream::FillChunk(int32_t index, Answer* answer) {
  message_.Clear();
  engine::GenerateStreamChunk& chunk = *message_.mutable_chunk();
  chunk.set_index(static_cast<uint32_t>(index));
  chunk.set_prompt_tokens(num_prompt_tokens_);
  chunk.set_completion_tokens(static_cast<uint32_t>(answer->outputs.size()));
  chunk.mutable_token_ids()->Add(
      answer->outputs.begin() + static_cast<std::ptrdiff_t>(next_output_),
      answer->outputs.end());
  if (!answer->rows.tokens.empty()) {
    TakeRows(answer->outputs.size(), answer, chunk.mutable_output_logprobs());
  }
  if (TellsPrompt(index)) {
    TakePromptRows(chunk.mutable_input_logprobs());
  }
}

void GenerateStream::FillComplete(int32_t index, Answer* answer) {
  const FinishEffect& finish = answer->finish;
  message_.Clear();
  engine::GenerateComplete& complete = *message_.mutable_complete();
  complete.set_index(static_cast<uint32_t>(index));
  complete.set_finish_reason(ToText(finish.reason));
  complete.set_prompt_tokens(num_prompt_tokens_);
  complete.set_completion_tokens(static_cast<uint32_t>(answer->outputs.size()));
  // Forks count the prompt of the first answer as cached.
  if (index == 0) {
    complete.set_cached_tokens(static_cast<uint32_t>(finish.num_cached_tokens));
  }
  complete.mutable_output_ids()->Add(answer->outputs.begin(),
                                     answer->outputs.end());
  if (!answer->rows.tokens.empty()) {
    TakeRows(answer->outputs.size(), answer,
             complete.mutable_output_logprobs());
  }
  if (index == 0 && !prompt_.empty() &&
      (!streams_ || answer->outputs.empty())) {
    TakePromptRows(complete.mutable_input_logprobs());
  }
  if (finish.stop.has_value()) {
    complete.set_matched_stop_str(stop_[static_cast<size_t>(*finish.stop)]);
  } else if (finish.reason == FinishReason::kStop && !answer->outputs.empty() &&
             std::ranges::binary_search(stop_token_ids_,
                                        answer->outputs.back())) {
    complete.set_matched_token_id(
        static_cast<uint32_t>(answer->outputs.back()));
  }
  // The memory is freed now, because other answers may run for long.
  answer->outputs = {};
  answer->rows = {};
}

void GenerateStream::TakeRows(size_t end, Answer* answer,
                              engine::OutputLogProbs* proto) {
  const auto begin = static_cast<size_t>(answer->first_row);
  const size_t num_rows =
      std::min(end - begin, static_cast<size_t>(answer->rows.num_rows()));
  for (size_t i = 0; i < num_rows; ++i) {
    const Row row = RowAt(answer->rows, i);
    proto->add_token_logprobs(row.logprobs[0]);
    proto->add_token_ids(static_cast<uint32_t>(row.tokens[0]));
    if (answer->rows.num_top > 0) AddTop(row, proto->add_top_logprobs());
  }
  const auto taken = static_cast<std::ptrdiff_t>(
      num_rows * (size_t{1} + static_cast<size_t>(answer->rows.num_top)));
  TokenLogProbs& rows = answer->rows;
  rows.tokens.erase(rows.tokens.begin(), rows.tokens.begin() + taken);
  rows.logprobs.erase(rows.logprobs.begin(), rows.logprobs.begin() + taken);
  answer->first_row += static_cast<int32_t>(num_rows);
}

void GenerateStream::TakePromptRows(engine::InputLogProbs* proto) {
  // The first token has no row, because no token precedes it.
  proto->add_token_logprobs();
  proto->add_token_ids(static_cast<uint32_t>(prompt_.front()));
  if (prompt_rows_.num_top > 0) proto->add_top_logprobs();
  for (size_t i = 0; i < static_cast<size_t>(prompt_rows_.num_rows()); ++i) {
    const Row row = RowAt(prompt_rows_, i);
    proto->add_token_logprobs()->set_value(row.logprobs[0]);
    proto->add_token_ids(static_cast<uint32_t>(row.tokens[0]));
    if (prompt_rows_.num_top > 0) AddTop(row, proto->add_top_logprobs());
  }
  prompt_rows_ = {};
}

}  // namespace blockmgr
