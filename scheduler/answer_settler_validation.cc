// AnswerSettler: checks that an answer fits the oldest step in flight.

#include <algorithm>
#include <optional>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/answer_settler.h"
#include "scheduler/require_range.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxTokenDataBytes = 16384;

absl::Status ValidateTokenData(const StepInFlight& step,
                               const StepResult& result) {
  if (!result.token_data.empty() &&
      result.token_data.size() != step.runs.size()) {
    return Invalid("token_data: expected none or ", step.runs.size(), ", got ",
                   result.token_data.size());
  }
  for (size_t i = 0; i < result.token_data.size(); ++i) {
    const int64_t most = step.runs[i].samples ? kMaxTokenDataBytes : 0;
    if (std::ssize(result.token_data[i]) <= most) continue;
    return Invalid("token_data[", i, "]: expected at most ", most, " bytes",
                   most == 0 ? " of a run that samples nothing" : "", ", got ",
                   result.token_data[i].size());
  }
  return absl::OkStatus();
}

// Checks that there are num_rows rows or none, and that their shapes agree.
absl::Status ValidateRows(absl::string_view field, const TokenLogProbs& rows,
                          const std::optional<int32_t>& asked_top,
                          int32_t vocabulary_size, int32_t num_rows) {
  if (rows.tokens.empty() && rows.logprobs.empty()) return absl::OkStatus();
  if (!asked_top.has_value()) {
    return Invalid(field, ": expected none, as the request asks for none, got ",
                   rows.tokens.size(), " tokens");
  }
  // The rows of all steps are of the same width.
  const int32_t num_top =
      vocabulary_size == 0 ? *asked_top : std::min(*asked_top, vocabulary_size);
  if (rows.num_top != num_top) {
    return Invalid(field, ".num_top: expected ", num_top,
                   ", as the request asks for ", *asked_top, ", got ",
                   rows.num_top);
  }
  const int64_t size = int64_t{num_rows} * (1 + rows.num_top);
  if (std::ssize(rows.tokens) == size && std::ssize(rows.logprobs) == size) {
    return absl::OkStatus();
  }
  return Invalid(field, ": expected ", num_rows, " rows of ", 1 + rows.num_top,
                 " tokens and logprobs, got ", rows.tokens.size(), " and ",
                 rows.logprobs.size());
}

absl::Status ValidateLogProbs(const SchedulerState& state,
                              const StepInFlight& step,
                              const StepResult& result) {
  int32_t least = 0;
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    const std::string field = absl::StrCat("logprobs[", i, "].");
    const RunLogProbs& rows = result.logprobs[i];
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, "run"), rows.run, least,
                                    std::ssize(step.runs) - 1,
                                    "runs of the step, ascending"));
    least = rows.run + 1;
    const auto index = static_cast<size_t>(rows.run);
    const StepInFlight::Run& run = step.runs[index];
    if (run.is_stale()) continue;
    const RequestState& request = *run.request;
    const std::optional<SamplingParams>& asked = request.info->sampling;
    const int32_t vocabulary_size =
        state.options().engine.sampling.vocabulary_size;
    const int32_t begin = state.manager.sequence(request.slot).num_settled;
    const int32_t num_prompt =
        std::min(begin + run.num_tokens, request.num_prompt - 1) - begin;
    BM_RETURN_IF_ERROR(
        ValidateRows(absl::StrCat(field, "prompt"), rows.prompt,
                     asked ? asked->prompt_logprobs : std::nullopt,
                     vocabulary_size, std::max(0, num_prompt)));
    const int32_t num_accepted =
        result.num_accepted.empty() ? 0 : result.num_accepted[index];
    BM_RETURN_IF_ERROR(
        ValidateRows(absl::StrCat(field, "outputs"), rows.outputs,
                     asked ? asked->logprobs : std::nullopt, vocabulary_size,
                     run.samples ? num_accepted + 1 : 0));
  }
  return absl::OkStatus();
}

absl::Status ValidateStopMatches(const StepInFlight& step,
                                 const StepResult& result) {
  int32_t least = 0;
  for (size_t i = 0; i < result.stop_matches.size(); ++i) {
    const std::string field = absl::StrCat("stop_matches[", i, "]");
    const StopMatch& match = result.stop_matches[i];
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, ".run"), match.run,
                                    least, std::ssize(step.runs) - 1,
                                    "runs of the step, ascending"));
    least = match.run + 1;
    const auto index = static_cast<size_t>(match.run);
    const StepInFlight::Run& run = step.runs[index];
    if (!run.samples) {
      return Invalid(field, ": expected none of run ", match.run,
                     ", as the run does not sample, got stop ", match.stop);
    }
    if (run.is_stale()) continue;
    const RequestState& request = *run.request;
    const std::optional<SamplingParams>& asked = request.info->sampling;
    const int64_t num_stops = asked ? std::ssize(asked->stop) : 0;
    if (match.stop < 0 || match.stop >= num_stops) {
      return Invalid(field, ".stop: expected one of the request's ", num_stops,
                     " stop strings, got ", match.stop);
    }
    const int32_t num_outputs =
        request.num_outputs() + 1 +
        (result.num_accepted.empty() ? 0 : result.num_accepted[index]);
    if (num_outputs <= request.min_tokens) {
      return Invalid(field, ": expected none in the first ", request.min_tokens,
                     " outputs (min_tokens), got output ", num_outputs);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateDrafts(const StepInFlight& step,
                            const StepResult& result) {
  const auto check_size = [&step](const char* field, size_t size) {
    if (size == 0 || size == step.runs.size()) return absl::OkStatus();
    return Invalid(field, ": expected none or ", step.runs.size(),
                   " numbers, got ", size);
  };
  BM_RETURN_IF_ERROR(check_size("num_accepted", result.num_accepted.size()));
  BM_RETURN_IF_ERROR(check_size("num_drafts", result.num_drafts.size()));
  int64_t num_accepted = 0;
  for (size_t i = 0; i < result.num_accepted.size(); ++i) {
    if (result.num_accepted[i] < 0 ||
        result.num_accepted[i] > step.runs[i].num_drafts) {
      return Invalid("num_accepted[", i, "]: expected 0 to ",
                     step.runs[i].num_drafts, " (the drafts of the run), got ",
                     result.num_accepted[i]);
    }
    num_accepted += result.num_accepted[i];
  }
  if (std::ssize(result.accepted) != num_accepted) {
    return Invalid("accepted: expected ", num_accepted,
                   " tokens (the sum of num_accepted), got ",
                   result.accepted.size());
  }
  for (size_t i = 0; i < result.accepted.size(); ++i) {
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat("accepted[", i, "]"),
                                    result.accepted[i], 0, INT32_MAX));
  }
  for (size_t i = 0; i < result.num_drafts.size(); ++i) {
    const bool may_have = step.runs[i].samples;
    if (result.num_drafts[i] < 0 || (!may_have && result.num_drafts[i] > 0)) {
      return Invalid("num_drafts[", i, "]: expected ",
                     may_have ? "at least 0" : "0, as the run does not sample",
                     ", got ", result.num_drafts[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOutcomes(const SchedulerState& state,
                              const StepInFlight& step,
                              const StepResult& result) {
  size_t next = 0;
  for (const StepInFlight::Order& order : step.orders) {
    const StepInFlight::Run& run = step.runs[order.run];
    for (const int32_t group : order.groups) {
      const size_t index = next++;
      const EvictionOutcome& outcome = result.evictions[index];
      if (!outcome.ok || run.is_stale()) continue;
      const absl::Status status = state.manager.ValidateCounts(
          run.request->slot, group, outcome.counts, outcome.layout_checksum);
      if (status.ok()) continue;
      return Invalid("evictions[", index, "] (request \"",
                     run.request->info->id, "\", layer group ", group,
                     "): ", status.message());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateResult(const SchedulerState& state,
                            const StepResult& result) {
  if (state.in_flight.empty()) {
    return Invalid("step: expected none, as none is in flight, got ",
                   Index(result.id));
  }
  const StepInFlight& step = state.in_flight.front();
  if (result.id != step.id) {
    return Invalid("step: expected ", Index(step.id),
                   " (the oldest in flight), got ", Index(result.id));
  }
  if (result.sampled.size() != step.runs.size()) {
    return Invalid("sampled: expected ", step.runs.size(), " tokens, got ",
                   result.sampled.size());
  }
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (step.runs[i].samples != (result.sampled[i] >= 0)) {
      return Invalid("sampled[", i, "]: expected ",
                     step.runs[i].samples ? "a token id of at least 0" : "-1",
                     ", got ", result.sampled[i]);
    }
  }
  BM_RETURN_IF_ERROR(ValidateDrafts(step, result));
  BM_RETURN_IF_ERROR(ValidateTokenData(step, result));
  BM_RETURN_IF_ERROR(ValidateLogProbs(state, step, result));
  BM_RETURN_IF_ERROR(ValidateStopMatches(step, result));
  int64_t num_orders = 0;
  for (const StepInFlight::Order& order : step.orders) {
    num_orders += std::ssize(order.groups);
  }
  if (std::ssize(result.evictions) != num_orders) {
    return Invalid("evictions: expected ", num_orders, " outcomes, got ",
                   result.evictions.size());
  }
  for (size_t i = 0; i < result.lost_blocks.size(); ++i) {
    const int32_t block = Index(result.lost_blocks[i]);
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat("lost_blocks[", i, "]"), block,
                                    1, state.layout().num_blocks - 1));
  }
  if (state.options().engine.num_host_blocks == 0 &&
      !result.lost_host_blocks.empty()) {
    return Invalid("lost_host_blocks: expected none, as the engine has no ",
                   "host blocks, got ", result.lost_host_blocks.size());
  }
  for (size_t i = 0; i < result.lost_host_blocks.size(); ++i) {
    const int32_t block = Index(result.lost_host_blocks[i]);
    BM_RETURN_IF_ERROR(
        RequireRange(absl::StrCat("lost_host_blocks[", i, "]"), block, 0,
                     state.options().engine.num_host_blocks - 1));
  }
  return ValidateOutcomes(state, step, result);
}

}  // namespace blockmgr
