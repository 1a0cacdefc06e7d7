// Scheduler: submission, commands, cancellation and statistics.

#include "scheduler/scheduler.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"
#include "scheduler/eviction_requests.h"
#include "scheduler/forks.h"
#include "scheduler/require_range.h"
#include "scheduler/sampling_requests.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxIdBytes = 128;
// The limits of one request. The request's wishes are searched once for each of
// its blocks.
constexpr int64_t kMaxStopTokens = 4096;
constexpr int64_t kMaxRetentionWishes = 64;
constexpr int64_t kMaxMedia = 4096;
// Compression points and media take hundreds of bytes each. The queue may hold
// one of them for each kTokensPerRecord tokens of
// SchedulerOptions::max_waiting_tokens, but at least kMinRecords.
constexpr int64_t kTokensPerRecord = 64;
constexpr int64_t kMinRecords = 4096;
// If all waiting requests have this much, it is as much memory as the queue's
// prompts have by default.
constexpr size_t kMaxEngineDataBytes = 16384;
// SchedulerOptions::max_num_blocks counts this many tokens for a block.
constexpr int64_t kTokensPerBlock = 16;

absl::Status RequireCount(absl::string_view field, int64_t count,
                          int64_t most) {
  if (count <= most) return absl::OkStatus();
  return Invalid(field, ": expected at most ", most, ", got ", count);
}

absl::Status ValidateWish(size_t index, const RetentionWish& wish) {
  const std::string field = absl::StrCat("retention[", index, "].");
  BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, "begin"), wish.begin, 0,
                                  std::numeric_limits<int32_t>::max()));
  if (wish.end != 0 && wish.end <= wish.begin) {
    return Invalid(field, "end: expected 0 (no end) or more than ", wish.begin,
                   " (begin), got ", wish.end);
  }
  BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, "priority"),
                                  wish.priority, 0, int32_t{kMaxPriority}));
  constexpr int64_t kYear = int64_t{366} * 24 * 3600 * 1000;
  if (wish.duration_ms < 0 || wish.duration_ms > kYear) {
    return Invalid(field, "duration_ms: expected 0 (for ever) to ", kYear,
                   ", got ", wish.duration_ms);
  }
  return absl::OkStatus();
}

// Returns the request's wishes, with durations counted from now.
std::vector<RetentionRange> RetentionOf(const Request& request,
                                        int64_t now_ms) {
  std::vector<RetentionRange> ranges;
  ranges.reserve(request.retention.size());
  for (const RetentionWish& wish : request.retention) {
    RetentionRange range;
    range.begin = wish.begin;
    if (wish.end != 0) range.end = wish.end;
    range.retention.priority = static_cast<uint8_t>(wish.priority);
    if (wish.duration_ms != 0) {
      range.retention.expires_ms = now_ms > Retention::kNever - wish.duration_ms
                                       ? Retention::kNever
                                       : now_ms + wish.duration_ms;
    }
    ranges.push_back(range);
  }
  return ranges;
}

// Returns what the engine is told of a request. Takes its texts.
std::shared_ptr<const RequestInfo> TakeInfo(const RequestState& state,
                                            int32_t num_prompt,
                                            const SchedulerOptions& options,
                                            Request* request) {
  RequestInfo info{.id = std::move(request->id),
                   .num_prompt_tokens = num_prompt,
                   .lora = request->scope.lora,
                   .media = request->scope.media,
                   .engine_data = std::move(request->engine_data),
                   .sampling = std::move(request->sampling)};
  if (info.sampling.has_value() && !info.sampling->seed.has_value()) {
    info.sampling->seed = static_cast<int64_t>(
        SplitMix64(options.sampling_seed ^ SplitMix64(Index(state.id))));
  }
  if (state.min_tokens > 0) {
    // As in vLLM, end tokens do not come early even if they are ignored.
    info.stop_token_ids = StopTokensOf(*request, options.engine.sampling,
                                       /*ignore_eos=*/false);
  }
  return std::make_shared<const RequestInfo>(std::move(info));
}

// Refuses a prompt that the queue has no room for.
absl::Status CheckQueue(const SchedulerState& state, int32_t num_prompt) {
  if (state.waiting.size() >= state.options().max_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", state.waiting.size(),
        " requests wait (max_waiting ", state.options().max_waiting, ")"));
  }
  const int64_t queued_tokens = state.tenants.queued_tokens();
  if (queued_tokens > 0 &&
      queued_tokens + num_prompt > state.options().max_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queued_tokens, " tokens of prompts wait, and ",
        num_prompt, " more are above max_waiting_tokens ",
        state.options().max_waiting_tokens));
  }
  return absl::OkStatus();
}

// Refuses compression points and media that the queue has no room for.
absl::Status CheckRecords(const SchedulerState& state, int32_t num_records) {
  const int64_t queued_records = state.tenants.queued_records();
  const int64_t most_records = std::max(
      state.options().max_waiting_tokens / kTokensPerRecord, kMinRecords);
  if (queued_records > 0 && queued_records + num_records > most_records) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queued_records,
        " compression points and media wait, and ", num_records,
        " more are above ", most_records, " (max_waiting_tokens / ",
        kTokensPerRecord, ", at least ", kMinRecords, ")"));
  }
  return absl::OkStatus();
}

absl::Status ValidateRequest(const Request& request, const ModelLayout& layout,
                             const SchedulerOptions& options) {
  if (request.id.empty() || request.id.size() > kMaxIdBytes) {
    return Invalid("request_id: expected 1 to ", kMaxIdBytes, " bytes, got ",
                   request.id.size());
  }
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError(
        "prompt: expected at least one token, got none");
  }
  // The lengths of lists are checked before their elements.
  BM_RETURN_IF_ERROR(RequireCount(
      "stop_token_ids", std::ssize(request.stop_token_ids), kMaxStopTokens));
  BM_RETURN_IF_ERROR(
      options.CheckLength(std::ssize(request.prompt), request.max_tokens));
  const int32_t vocabulary_size = options.engine.sampling.vocabulary_size;
  BM_RETURN_IF_ERROR(ValidateTokens("prompt", request.prompt, vocabulary_size));
  BM_RETURN_IF_ERROR(ValidateTokens("stop_token_ids", request.stop_token_ids,
                                    vocabulary_size));
  BM_RETURN_IF_ERROR(ValidateSampling(request, options.engine.sampling));
  BM_RETURN_IF_ERROR(
      RequireCount("media", std::ssize(request.scope.media), kMaxMedia));
  BM_RETURN_IF_ERROR(ValidateScope(request.scope, std::ssize(request.prompt)));
  BM_RETURN_IF_ERROR(RequireCount("retention", std::ssize(request.retention),
                                  kMaxRetentionWishes));
  for (size_t i = 0; i < request.retention.size(); ++i) {
    BM_RETURN_IF_ERROR(ValidateWish(i, request.retention[i]));
  }
  if (request.engine_data.size() > kMaxEngineDataBytes) {
    return Invalid("engine_data: expected at most ", kMaxEngineDataBytes,
                   " bytes, got ", request.engine_data.size());
  }
  return ValidateEviction(request.eviction, layout, options);
}

absl::Status NotLive(RequestId request) {
  return absl::NotFoundError(
      absl::StrCat("request: expected a live one, got ", Index(request)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(
    const ModelLayout& layout, const SchedulerOptions& options) {
  BM_RETURN_IF_ERROR(layout.Validate());
  BM_RETURN_IF_ERROR(options.Validate());
  BM_RETURN_IF_ERROR(RequireRange("num_blocks", layout.num_blocks, 2,
                                  options.max_num_blocks, "to max_num_blocks"));
  const int64_t max_tokens = int64_t{options.max_num_blocks} * kTokensPerBlock;
  if (layout.num_blocks > max_tokens / layout.page_size) {
    return Invalid("num_blocks: expected at most ",
                   max_tokens / layout.page_size, " of ", layout.page_size,
                   " tokens (max_num_blocks of ", kTokensPerBlock, "), got ",
                   layout.num_blocks);
  }
  BM_RETURN_IF_ERROR(RequireRange("num_host_blocks",
                                  options.engine.num_host_blocks, 0,
                                  options.max_num_blocks, "to max_num_blocks"));
  return std::make_unique<SchedulerImpl>(layout, options);
}

SchedulerImpl::SchedulerImpl(const ModelLayout& layout,
                             const SchedulerOptions& options)
    : state_(layout, options),
      finder_(state_.manager, state_.options()),
      planner_(state_, &finder_),
      lifecycle_(&state_, &finder_),
      applier_(&state_, &lifecycle_,
               [this](SequenceSlot slot, std::vector<BlockTransfer>* out) {
                 return TakeHostBlocks(slot, out);
               }),
      settler_(&state_, &lifecycle_) {}

absl::StatusOr<RequestId> SchedulerImpl::Submit(Request request) {
  BM_RETURN_IF_ERROR(ValidateRequest(request, layout(), options()));
  if (state_.requests.FindName(request.id) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: expected one that is not in use, got '",
                     request.id, "' which names a live request"));
  }
  const RequestState* parent = state_.requests.FindName(request.fork_of);
  BM_RETURN_IF_ERROR(ValidateFork(request, parent));
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  BM_RETURN_IF_ERROR(CheckQueue(state_, num_prompt));
  BM_RETURN_IF_ERROR(CheckNumPoints(request, parent, layout()));
  EvictionPlan eviction = PlanEviction(request, parent, layout());
  const auto num_records = static_cast<int32_t>(eviction.compressions.size() +
                                                request.scope.media.size());
  BM_RETURN_IF_ERROR(CheckRecords(state_, num_records));
  const int32_t length = num_prompt + request.max_tokens - 1;
  const auto [max_chunk, peak] =
      FitPool(layout(), options(), length, eviction.compressions,
              eviction.decode.get(), eviction.squeeze.get());
  if (peak > state_.manager.num_usable()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request can never fit: it needs ", peak, " blocks at its peak (",
        num_prompt, " prompt and ", request.max_tokens,
        " output tokens), the pool has ", state_.manager.num_usable()));
  }
  const TenantDemand demand{.prompt_tokens = num_prompt,
                            .peak_blocks = peak,
                            .num_records = num_records};
  BM_RETURN_IF_ERROR(state_.tenants.CheckSubmit(request.scope.tenant, demand));

  RequestState* state =
      state_.requests.Add(RequestId{state_.next_request++}, request.id);
  state->stop_token_ids = StopTokensOf(
      request, options().engine.sampling,
      request.sampling.has_value() && request.sampling->ignore_eos);
  if (request.sampling.has_value()) {
    const SamplingParams& sampling = *request.sampling;
    state->min_tokens = sampling.min_tokens;
    state->needs_prompt_logprobs = sampling.prompt_logprobs.has_value();
  }
  state->info = TakeInfo(*state, num_prompt, options(), &request);
  state->tokens = std::move(request.prompt);
  state->num_prompt = num_prompt;
  state->max_tokens = request.max_tokens;
  state->chain = BlockChain(request.scope);
  state->chain.SetRetention(RetentionOf(request, state_.now_ms));
  if (parent != nullptr) {
    state->fork_of = parent->id;
    // The count is computed here, so that a step that examines thousands of
    // forks need not compare prompts.
    state->num_common = CountCommonTokens(*parent, *state);
  }
  ListFirstPoint(length, layout(), &eviction);
  state->eviction = std::move(eviction);
  state->priority = request.priority;
  state->peak_blocks = peak;
  state->num_records = num_records;
  state->max_chunk = max_chunk;
  state->submit_step = state_.next_step;
  state->tenant = state_.tenants.Submit(request.scope.tenant, demand);
  lifecycle_.JoinQueue(state);
  return state->id;
}

absl::Status SchedulerImpl::Cancel(RequestId request, Effects* effects) {
  RequestState* state = state_.requests.Find(request);
  if (state == nullptr) return NotLive(request);
  if (state->running) {
    std::erase(state_.running.all(), state);
  } else {
    lifecycle_.LeaveQueue(state);
  }
  lifecycle_.Retire(state, FinishReason::kCancelled, absl::OkStatus(), effects);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SchedulerImpl::Evict(RequestId request,
                                              EvictionCommand command) {
  RequestState* state = state_.requests.Find(request);
  if (state == nullptr) return NotLive(request);
  if (state->num_outputs() == 0) {
    return absl::FailedPreconditionError(
        "the request has not computed its prompt yet");
  }
  if (state->command != nullptr || state->order_in_flight) {
    return absl::FailedPreconditionError(
        "an eviction of the request is under way");
  }
  BM_RETURN_IF_ERROR(ValidateCommand(*state, command, state_));
  const uint64_t number = state_.next_command++;
  state->command = std::make_unique<const PendingCommand>(
      PendingCommand{number, std::move(command)});
  return number;
}

bool SchedulerImpl::WithdrawEviction(RequestId request, uint64_t command) {
  RequestState* state = state_.requests.Find(request);
  if (state == nullptr || state->command == nullptr ||
      state->command->number != command) {
    return false;
  }
  state->command.reset();
  return true;
}

absl::StatusOr<RequestId> SchedulerImpl::Find(absl::string_view id) const {
  const RequestState* found = state_.requests.FindName(id);
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("request_id: expected a live request, got '", id, "'"));
  }
  return found->id;
}

bool SchedulerImpl::Schedule(StepPlan* plan) {
  StepDecision* decision = planner_.Plan();
  if (decision == nullptr) return false;
  applier_.Apply(decision, plan);
  return true;
}

SchedulerStats SchedulerImpl::stats() const {
  SchedulerStats stats = state_.totals;
  stats.num_waiting = state_.waiting.size();
  stats.num_waiting_tokens = state_.tenants.queued_tokens();
  stats.num_running = static_cast<int32_t>(state_.running.size());
  stats.num_steps_in_flight = num_steps_in_flight();
  stats.kept_entries_min = state_.kept.Quantile(0.0);
  stats.kept_entries_median = state_.kept.Quantile(0.5);
  stats.kept_entries_max = state_.kept.Quantile(1.0);
  stats.tenants = state_.tenants.Uses();
  stats.blocks = state_.manager.stats();
  stats.num_swapped = state_.manager.host().num_sequences();
  stats.host_blocks = state_.manager.host().num_blocks();
  stats.used_host_blocks = state_.manager.host().num_used();
  return stats;
}

}  // namespace blockmgr
