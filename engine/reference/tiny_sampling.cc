// Sampling, the verification of drafts, and log-probabilities.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/reference/prompt_lookup.h"
#include "engine/reference/tiny_engine.h"

namespace blockmgr {
namespace {

// The logits of so many rows of a prompt are in memory at a time: 12 MiB for a
// vocabulary of 49,152 tokens.
constexpr int32_t kPromptRows = 64;

}  // namespace

const RequestInfo* TinyEngine::InfoOf(SequenceSlot slot) const {
  const auto index = static_cast<size_t>(Index(slot));
  return index < infos_.size() ? infos_[index].get() : nullptr;
}

void TinyEngine::NoteInfos(const StepPlan& plan) {
  for (const SequenceStart& start : plan.starts) {
    const auto index = static_cast<size_t>(Index(start.slot));
    if (index >= infos_.size()) infos_.resize(index + 1);
    infos_[index] = start.info;
  }
}

int32_t TinyEngine::SampleAfter(SequenceSlot slot, size_t row,
                                TokenLogProbs* logprobs) {
  if (logprobs == nullptr && !drawn_.empty()) {
    const auto found = std::ranges::lower_bound(logit_rows_, row);
    const int32_t token =
        drawn_[static_cast<size_t>(found - logit_rows_.begin())];
    if (token >= 0) return token;
  }
  const std::span<const float> logits = forward_->Logits(row);
  if (observer_.on_logits && !IsDamaged(slot)) {
    observer_.on_logits(slot, positions_[row], logits);
  }
  const auto length = static_cast<size_t>(positions_[row]) + 1;
  const int32_t token = sampler_.Sample(
      InfoOf(slot), std::span(tables_.row(slot).tokens).first(length), logits);
  if (logprobs != nullptr) sampler_.AddLogProbs(logits, token, logprobs);
  return token;
}

void TinyEngine::Sample(const StepPlan& plan, StepResult* result) {
  std::vector<RunLogProbs> rows(plan.slots.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].run = static_cast<int32_t>(i);
    AddPromptLogProbs(plan, i, &rows[i].prompt);
    ShowLogits(plan, i);
  }
  ComputeLogits(plan);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (plan.samples[i] != 0) SampleRun(plan, i, &rows[i].outputs, result);
    if (rows[i].prompt.tokens.empty() && rows[i].outputs.tokens.empty()) {
      continue;
    }
    result->logprobs.push_back(std::move(rows[i]));
  }
}

void TinyEngine::ComputeLogits(const StepPlan& plan) {
  logit_rows_.clear();
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.samples[i] == 0) continue;
    const int32_t end = query_offsets_[i + 1];
    const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[i];
    for (int32_t row = end - 1 - num_drafts; row < end; ++row) {
      logit_rows_.push_back(static_cast<size_t>(row));
    }
  }
  forward_->ComputeLogits(logit_rows_);
  drawn_.clear();
  // Observers see all logits.
  if (forward_->device() != nullptr && !observer_.on_logits) {
    DrawOnDevice(plan);
  }
}

void TinyEngine::DrawOnDevice(const StepPlan& plan) {
  draws_.clear();
  edits_.clear();
  drawn_.assign(logit_rows_.size(), -1);
  size_t index = 0;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.samples[i] == 0) continue;
    const RequestInfo* info = InfoOf(plan.slots[i]);
    const bool is_read = info != nullptr && info->sampling.has_value() &&
                         info->sampling->logprobs.has_value();
    const auto end = static_cast<size_t>(query_offsets_[i + 1]);
    for (; index < logit_rows_.size() && logit_rows_[index] < end; ++index) {
      const auto length =
          static_cast<size_t>(positions_[logit_rows_[index]]) + 1;
      RowDraw draw;
      if (!is_read &&
          sampler_.PlanDraw(
              info, std::span(tables_.row(plan.slots[i]).tokens).first(length),
              static_cast<int32_t>(index), &draw, &edits_)) {
        draws_.push_back(draw);
      }
    }
  }
  std::vector<int32_t> tokens(draws_.size());
  forward_->device()->DrawTokens(edits_, draws_, tokens);
  for (size_t i = 0; i < draws_.size(); ++i) {
    drawn_[static_cast<size_t>(draws_[i].row)] = tokens[i];
  }
}

TokenLogProbs* TinyEngine::RowsFor(const std::optional<int32_t>& num_top,
                                   TokenLogProbs* rows) const {
  if (!num_top.has_value()) return nullptr;
  rows->num_top = std::min(*num_top, sampler_.vocabulary());
  return rows;
}

void TinyEngine::AddPromptLogProbs(const StepPlan& plan, size_t run,
                                   TokenLogProbs* rows) {
  const SequenceSlot slot = plan.slots[run];
  const RequestInfo* info = InfoOf(slot);
  if (info == nullptr || !info->sampling.has_value() ||
      RowsFor(info->sampling->prompt_logprobs, rows) == nullptr) {
    return;
  }
  const std::vector<int32_t>& tokens = tables_.row(slot).tokens;
  const int32_t first = query_offsets_[run];
  // The last token of the prompt is followed by an output.
  const int32_t num_rows = std::min(
      query_offsets_[run + 1] - first,
      info->num_prompt_tokens - 1 - positions_[static_cast<size_t>(first)]);
  for (int32_t begin = 0; begin < num_rows; begin += kPromptRows) {
    logit_rows_.clear();
    const int32_t end = std::min(num_rows, begin + kPromptRows);
    for (int32_t i = begin; i < end; ++i) {
      logit_rows_.push_back(static_cast<size_t>(first + i));
    }
    forward_->ComputeLogits(logit_rows_);
    for (const size_t row : logit_rows_) {
      const auto next = static_cast<size_t>(positions_[row]) + 1;
      sampler_.AddLogProbs(forward_->Logits(row), tokens[next], rows);
    }
  }
}

void TinyEngine::ShowLogits(const StepPlan& plan, size_t run) {
  const SequenceSlot slot = plan.slots[run];
  if (!observer_.wants_logits || !observer_.on_logits || IsDamaged(slot)) {
    return;
  }
  const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[run];
  const auto begin = static_cast<size_t>(query_offsets_[run]);
  const auto end =
      static_cast<size_t>(query_offsets_[run + 1]) -
      (plan.samples[run] != 0 ? static_cast<size_t>(num_drafts) + 1 : 0);
  std::vector<size_t> wanted;
  for (size_t row = begin; row < end; ++row) {
    if (observer_.wants_logits(slot, positions_[row])) wanted.push_back(row);
  }
  for (std::span<const size_t> rest = wanted; !rest.empty();) {
    const auto rows = rest.first(std::min<size_t>(rest.size(), kPromptRows));
    forward_->ComputeLogits(rows);
    for (const size_t row : rows) {
      observer_.on_logits(slot, positions_[row], forward_->Logits(row));
    }
    rest = rest.subspan(rows.size());
  }
}

std::optional<int32_t> TinyEngine::StopAfter(const RequestInfo* info,
                                             std::span<const int32_t> tokens,
                                             int32_t token) const {
  if (info == nullptr || !info->sampling.has_value()) return std::nullopt;
  const SamplingParams& params = *info->sampling;
  const std::span<const int32_t> outputs = tokens.subspan(
      std::min(tokens.size(), static_cast<size_t>(info->num_prompt_tokens)));
  if (std::ssize(outputs) < params.min_tokens) return std::nullopt;
  return FindStop(token_texts_, outputs, token, params.stop);
}

void TinyEngine::SampleRun(const StepPlan& plan, size_t run,
                           TokenLogProbs* rows, StepResult* result) {
  const SequenceSlot slot = plan.slots[run];
  const RequestInfo* info = InfoOf(slot);
  TokenLogProbs* const logprobs = info == nullptr || !info->sampling.has_value()
                                      ? nullptr
                                      : RowsFor(info->sampling->logprobs, rows);
  const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[run];
  auto row = static_cast<size_t>(query_offsets_[run + 1] - 1 - num_drafts);
  const auto tokens_to = [&](size_t last) {
    return std::span<const int32_t>(tables_.row(slot).tokens)
        .first(static_cast<size_t>(positions_[last]) + 1);
  };
  int32_t token = SampleAfter(slot, row, logprobs);
  std::optional<int32_t> stop = StopAfter(info, tokens_to(row), token);
  if (num_drafts > 0) {
    int32_t& num_accepted = result->num_accepted[run];
    // A draft is right if it is what would have been sampled without it.
    while (!stop.has_value() && num_accepted < num_drafts &&
           token == tokens_[row + 1]) {
      result->accepted.push_back(token);
      ++num_accepted;
      token = SampleAfter(slot, ++row, logprobs);
      stop = StopAfter(info, tokens_to(row), token);
    }
    tables_.RejectDrafts(slot, num_drafts, num_accepted);
  }
  if (stop.has_value()) {
    result->stop_matches.push_back(
        {.run = static_cast<int32_t>(run), .stop = *stop});
  }
  result->sampled[run] = token;
  tables_.AddSampled(slot, token);
  if (max_drafts_ == 0) return;
  const std::span<const int32_t> drafts =
      LookUpDrafts(tables_.row(slot).tokens, max_drafts_);
  tables_.SetDrafts(slot, drafts);
  result->num_drafts[run] = static_cast<int32_t>(drafts.size());
}

}  // namespace blockmgr
