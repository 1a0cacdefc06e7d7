// Log-probabilities on their way from the engine to the frontend.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "scheduler/answer_settler.h"

namespace blockmgr {
namespace {

// The most rows of one effect. A row has at most 21 tokens, so a message with
// one effect stays below 4 MiB, which gRPC accepts by default.
constexpr int32_t kMaxRows = 1024;

// Adds the rows [begin, end) of `all`, in pieces. Row 0 is about the token
// `first_index`.
void AddRows(const TokenLogProbs& all, int32_t first_index, int32_t begin,
             int32_t end, LogProbsEffect effect, Effects* effects) {
  const auto width = size_t{1} + static_cast<size_t>(all.num_top);
  effect.logprobs.num_top = all.num_top;
  while (begin < end) {
    const int32_t next = std::min(end, begin + kMaxRows);
    const auto from =
        static_cast<ptrdiff_t>(static_cast<size_t>(begin) * width);
    const auto to = static_cast<ptrdiff_t>(static_cast<size_t>(next) * width);
    LogProbsEffect& piece = effects->logprobs.emplace_back(effect);
    piece.logprobs.first_index = first_index + begin;
    piece.logprobs.tokens.assign(all.tokens.begin() + from,
                                 all.tokens.begin() + to);
    piece.logprobs.logprobs.assign(all.logprobs.begin() + from,
                                   all.logprobs.begin() + to);
    begin = next;
  }
}

}  // namespace

void AnswerSettler::TellPromptLogProbs(const RequestState& request,
                                       int32_t begin, const RunLogProbs& rows,
                                       Effects* effects) {
  // A request that is computed again told its settled tokens' rows the first
  // time.
  const int32_t num_told = std::max(0, request.max_settled - begin);
  AddRows(rows.prompt, begin + 1, num_told, rows.prompt.num_rows(),
          {.request = request.id,
           .num_outputs = request.num_outputs(),
           .of_prompt = true,
           .logprobs = {}},
          effects);
}

void AnswerSettler::TellOutputLogProbs(const RequestState& request,
                                       int32_t num_outputs,
                                       const RunLogProbs& rows,
                                       Effects* effects) {
  // A stop token among accepted drafts has cut off the rows behind it.
  const int32_t num_added = request.num_outputs() - num_outputs;
  AddRows(rows.outputs, num_outputs, 0,
          std::min(num_added, rows.outputs.num_rows()),
          {.request = request.id, .num_outputs = num_outputs, .logprobs = {}},
          effects);
}

}  // namespace blockmgr
