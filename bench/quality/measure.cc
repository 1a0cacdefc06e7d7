#include "bench/quality/measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// A compressed request lives on until its fork has started.
constexpr int32_t kParentTokens = 8;

using Tokens = std::vector<int32_t>;

void AppendTokens(const Tokens& from, Tokens* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// The tokens of an answer among those of a conversation.
struct AnswerPlace {
  int32_t begin = 0;
  int32_t end = 0;
  double depth = -1.0;
};

// A Conversation is a prompt, which is compressed, and the turns behind it.
struct Conversation {
  Tokens prompt;
  Tokens tail;
  std::vector<AnswerPlace> answers;

  Tokens all() const {
    Tokens tokens = prompt;
    AppendTokens(tail, &tokens);
    return tokens;
  }
  void AddAnswer(const QualityTurn& turn) {
    AppendTokens(turn.lead, &tail);
    const auto begin = static_cast<int32_t>(prompt.size() + tail.size());
    AppendTokens(turn.answer, &tail);
    answers.push_back(
        {begin, static_cast<int32_t>(prompt.size() + tail.size()), turn.depth});
  }
};

// All turns after one context, or each question with a context of its own.
std::vector<Conversation> ConversationsOf(const QualityPrompt& prompt,
                                          const QualityMode& mode) {
  std::vector<Conversation> conversations;
  if (mode.kind == QualityMode::Kind::kAware) {
    for (const QualityTurn& turn : prompt.turns) {
      Conversation& last = conversations.emplace_back();
      last.prompt = prompt.context;
      AppendTokens(turn.question, &last.prompt);
      last.AddAnswer(turn);
    }
    return conversations;
  }
  Conversation& only = conversations.emplace_back();
  only.prompt = prompt.context;
  for (size_t i = 0; i < prompt.turns.size(); ++i) {
    const QualityTurn& turn = prompt.turns[i];
    AppendTokens(i == 0 ? turn.question : turn.follow_up, &only.tail);
    only.AddAnswer(turn);
  }
  return conversations;
}

// Log-probabilities of the whole vocabulary, in the order of the positions that
// are read.
using Distributions = std::vector<std::vector<float>>;

std::vector<float> LogSoftmax(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - max);
  const double shift = max + std::log(sum);
  std::vector<float> logprobs;
  logprobs.reserve(logits.size());
  for (const float logit : logits) {
    logprobs.push_back(static_cast<float>(logit - shift));
  }
  return logprobs;
}

// Returns the positions in [first, limit) whose logits are those of the
// answers' tokens.
std::vector<int32_t> AnswerPositions(const Conversation& conversation,
                                     int32_t first, int32_t limit) {
  std::vector<int32_t> positions;
  for (const AnswerPlace& place : conversation.answers) {
    for (int32_t i = place.begin - 1; i < place.end - 1; ++i) {
      if (i >= first && i < limit) positions.push_back(i);
    }
  }
  return positions;
}

LogitsReader ReaderInto(std::vector<int32_t> positions, Distributions* rows) {
  return {.positions = std::move(positions),
          .read = [rows](int32_t /*position*/, std::span<const float> logits) {
            rows->push_back(LogSoftmax(logits));
          }};
}

double Divergence(std::span<const float> full, std::span<const float> other) {
  double sum = 0.0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double logprob = full[i];
    sum += std::exp(logprob) * (logprob - other[i]);
  }
  return sum;
}

// Judges the answers by one distribution for each of their tokens.
void JudgeAnswers(const Conversation& conversation, const Distributions& full,
                  const Distributions& rows,
                  std::vector<AnswerOutcome>* answers) {
  const Tokens tokens = conversation.all();
  size_t row = 0;
  for (const AnswerPlace& place : conversation.answers) {
    AnswerOutcome& outcome = answers->emplace_back();
    outcome.depth = place.depth;
    const double num_tokens = place.end - place.begin;
    int32_t num_right = 0;
    for (int32_t i = place.begin; i < place.end; ++i, ++row) {
      const std::vector<float>& logprobs = rows[row];
      const auto token = static_cast<size_t>(tokens[static_cast<size_t>(i)]);
      const auto best = std::ranges::max_element(logprobs) - logprobs.begin();
      if (static_cast<size_t>(best) == token) ++num_right;
      outcome.nll -= logprobs[token] / num_tokens;
      outcome.kl += Divergence(full[row], logprobs) / num_tokens;
    }
    outcome.correct = num_right == place.end - place.begin;
    outcome.token_share = num_right / num_tokens;
  }
}

// Returns why one of the evictions was refused.
absl::Status StatusOf(std::span<const EvictionEffect> evictions) {
  for (const EvictionEffect& eviction : evictions) {
    BM_RETURN_IF_ERROR(eviction.status);
  }
  return absl::OkStatus();
}

Request MakeRequest(const char* id, Tokens prompt, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// Measures one prompt.
class PromptMeasurement {
 public:
  PromptMeasurement(const QualityPrompt& prompt, const QualityMode& mode,
                    ModelLine* line)
      : line_(*line), conversations_(ConversationsOf(prompt, mode)) {}

  // Measures a cell, or the full cache if the eviction is none. The full cache
  // comes first.
  absl::StatusOr<CellOutcome> Measure(const RequestEviction& eviction);

 private:
  // Runs a conversation with a cache that is compressed behind the prompt.
  // Returns the distributions of the answers' tokens.
  absl::StatusOr<Distributions> Run(const RequestEviction& eviction,
                                    const Conversation& conversation,
                                    CellOutcome* outcome);
  // Returns the entries of a head, as a mean over all heads, with `num_tokens`
  // tokens behind this eviction.
  double MeanEntries(const EvictionEffect& eviction, int32_t num_tokens) const;
  // Adds the mean while the tail is computed, as that of one of conversations_.
  void AddEntries(const RequestEviction& eviction,
                  const Conversation& conversation,
                  std::span<const EvictionEffect> of_prompt,
                  std::span<const EvictionEffect> of_tail,
                  CellOutcome* outcome) const;
  // Adds what the compressed request holds, as one of conversations_.
  void AddHeld(int32_t num_tokens, std::span<const EvictionEffect> evictions,
               CellOutcome* outcome) const;
  double share() const {
    return 1.0 / static_cast<double>(conversations_.size());
  }

  ModelLine& line_;
  const std::vector<Conversation> conversations_;
  std::vector<Distributions> full_;  // by conversation, once measured
};

double PromptMeasurement::MeanEntries(const EvictionEffect& eviction,
                                      int32_t num_tokens) const {
  const std::vector<int32_t>& kept = eviction.kept_entries;
  return std::accumulate(kept.begin(), kept.end(), 0.0) /
             static_cast<double>(kept.size()) +
         (num_tokens - eviction.cut);
}

void PromptMeasurement::AddEntries(const RequestEviction& eviction,
                                   const Conversation& conversation,
                                   std::span<const EvictionEffect> of_prompt,
                                   std::span<const EvictionEffect> of_tail,
                                   CellOutcome* outcome) const {
  const int32_t page_size = line_.layout().page_size;
  const auto num_prompt = static_cast<int32_t>(conversation.prompt.size());
  const auto num_tail = static_cast<int32_t>(conversation.tail.size());
  double entries = of_prompt.empty()
                       ? num_prompt
                       : MeanEntries(of_prompt.back(), num_prompt);
  double sum = 0.0;
  for (int32_t i = 0; i < num_tail; ++i) {
    const int32_t length = num_prompt + i;
    const bool is_due =
        !of_tail.empty() && i > 0 && i % eviction.compress_every == 0 &&
        of_tail.front().cut <= (length - 1) / page_size * page_size;
    if (is_due) {
      entries = MeanEntries(of_tail.front(), length);
      of_tail = of_tail.subspan(1);
    }
    sum += ++entries;
  }
  BM_CHECK(of_tail.empty());
  outcome->mean_entries += sum / num_tail * share();
}

void PromptMeasurement::AddHeld(int32_t num_tokens,
                                std::span<const EvictionEffect> evictions,
                                CellOutcome* outcome) const {
  const ModelLayout& layout = line_.layout();
  int64_t held_blocks =
      (int64_t{num_tokens} + layout.page_size - 1) / layout.page_size;
  double kept_share = 1.0;
  for (const EvictionEffect& eviction : evictions) {
    held_blocks -= eviction.freed_blocks;
    const auto num_heads = static_cast<int64_t>(eviction.kept_entries.size());
    int64_t kept = num_heads * (num_tokens - eviction.cut);
    for (const int32_t entries : eviction.kept_entries) kept += entries;
    kept_share =
        static_cast<double>(kept) / static_cast<double>(num_heads * num_tokens);
  }
  outcome->kept_share += kept_share * share();
  outcome->held_bytes += static_cast<int64_t>(std::llround(
      static_cast<double>(held_blocks * layout.block_bytes()) * share()));
}

absl::StatusOr<Distributions> PromptMeasurement::Run(
    const RequestEviction& eviction, const Conversation& conversation,
    CellOutcome* outcome) {
  const auto num_prompt = static_cast<int32_t>(conversation.prompt.size());
  Distributions rows;
  Request parent =
      MakeRequest("compressed", conversation.prompt, kParentTokens);
  parent.eviction = eviction;
  // All tokens before the compression are computed with the full cache.
  BM_ASSIGN_OR_RETURN(
      const RequestId parent_id,
      line_.Submit(
          std::move(parent),
          ReaderInto(AnswerPositions(conversation, 0, num_prompt), &rows)));
  BM_ASSIGN_OR_RETURN(const LineOutcome compressed,
                      line_.RunUntilToken(parent_id));
  BM_RETURN_IF_ERROR(StatusOf(compressed.evictions));
  AddHeld(num_prompt, compressed.evictions, outcome);

  Request fork = MakeRequest("asked", conversation.all(), 1);
  fork.fork_of = "compressed";
  BM_ASSIGN_OR_RETURN(
      const RequestId fork_id,
      line_.Submit(
          std::move(fork),
          ReaderInto(AnswerPositions(conversation, num_prompt, INT32_MAX),
                     &rows)));
  BM_ASSIGN_OR_RETURN(const LineOutcome ended, line_.RunUntilEnd(fork_id));
  BM_RETURN_IF_ERROR(StatusOf(ended.evictions));
  BM_RETURN_IF_ERROR(line_.Cancel(parent_id));
  if (ended.finish.num_cached_tokens != num_prompt) {
    return absl::InternalError(
        absl::StrCat("a fork started with ", ended.finish.num_cached_tokens,
                     " tokens, expected the cache of ", num_prompt));
  }
  AddEntries(eviction, conversation, compressed.evictions, ended.evictions,
             outcome);
  outcome->tokens_per_s +=
      static_cast<double>(conversation.tail.size()) / ended.seconds * share();
  return rows;
}

absl::StatusOr<CellOutcome> PromptMeasurement::Measure(
    const RequestEviction& eviction) {
  CellOutcome outcome;
  outcome.kept_share = 0.0;
  for (size_t i = 0; i < conversations_.size(); ++i) {
    const Conversation& conversation = conversations_[i];
    BM_ASSIGN_OR_RETURN(Distributions rows,
                        Run(eviction, conversation, &outcome));
    if (i == full_.size()) full_.push_back(rows);
    JudgeAnswers(conversation, full_[i], rows, &outcome.answers);
  }
  return outcome;
}

}  // namespace

absl::StatusOr<std::vector<CellOutcome>> MeasurePrompt(
    const QualityPrompt& prompt, std::span<const QualityCell> cells,
    ModelLine* line, const std::function<void()>& on_cell) {
  BM_CHECK(!cells.empty());
  PromptMeasurement measurement(prompt, cells.front().mode, line);
  std::vector<CellOutcome> outcomes;
  BM_ASSIGN_OR_RETURN(outcomes.emplace_back(), measurement.Measure({}));
  for (const QualityCell& cell : cells) {
    BM_CHECK(cell.mode == cells.front().mode);
    absl::StatusOr<CellOutcome> outcome = measurement.Measure(cell.eviction);
    if (!outcome.ok()) {
      return absl::Status(
          outcome.status().code(),
          absl::StrCat(cell.name(), ": ", outcome.status().message()));
    }
    outcomes.push_back(*std::move(outcome));
    on_cell();
  }
  return outcomes;
}

}  // namespace blockmgr
