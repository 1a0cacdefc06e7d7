// Submission, cancellation and statistics.

#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/compression_points.h"
#include "scheduler/forks.h"
#include "scheduler/require_range.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxIdBytes = 128;
// Of a request. Wishes are looked through once for each of its blocks.
constexpr int64_t kMaxStopTokens = 4096;
constexpr int64_t kMaxRetentionWishes = 64;
constexpr int64_t kMaxMedia = 4096;
// As much as the queue's prompts by default, if all that wait have so much.
constexpr size_t kMaxEngineDataBytes = 16384;
// Whose ids a block of SchedulerOptions::max_num_blocks is counted with.
constexpr int64_t kTokensPerBlock = 16;

absl::Status ValidateTokens(const char* field,
                            const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "]: expected a token id of at least 0, ",
                       "got ", tokens[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status RequireCount(absl::string_view field, int64_t count,
                          int64_t most) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected at most ", most, ", got ", count));
}

absl::Status ValidateWish(size_t index, const RetentionWish& wish) {
  const std::string field = absl::StrCat("retention[", index, "].");
  BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, "begin"), wish.begin, 0,
                                  std::numeric_limits<int32_t>::max()));
  if (wish.end != 0 && wish.end <= wish.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, "end: expected 0 (no end) or more than ",
                     wish.begin, " (begin), got ", wish.end));
  }
  BM_RETURN_IF_ERROR(RequireRange(absl::StrCat(field, "priority"),
                                  wish.priority, 0, int32_t{kMaxPriority}));
  constexpr int64_t kYear = int64_t{366} * 24 * 3600 * 1000;
  if (wish.duration_ms < 0 || wish.duration_ms > kYear) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, "duration_ms: expected 0 (for ever) to ", kYear,
                     ", got ", wish.duration_ms));
  }
  return absl::OkStatus();
}

// Of the sequence, with its durations counted from now.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(
    const ModelLayout& layout, const SchedulerOptions& options) {
  BM_RETURN_IF_ERROR(layout.Validate());
  BM_RETURN_IF_ERROR(options.Validate());
  BM_RETURN_IF_ERROR(RequireRange("num_blocks", layout.num_blocks, 2,
                                  options.max_num_blocks, "to max_num_blocks"));
  const int64_t max_tokens = int64_t{options.max_num_blocks} * kTokensPerBlock;
  if (layout.num_blocks > max_tokens / layout.page_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_blocks: expected at most ", max_tokens / layout.page_size, " of ",
        layout.page_size, " tokens (max_num_blocks of ", kTokensPerBlock,
        "), got ", layout.num_blocks));
  }
  BM_RETURN_IF_ERROR(RequireRange("num_host_blocks", options.num_host_blocks, 0,
                                  options.max_num_blocks, "to max_num_blocks"));
  return std::make_unique<SchedulerImpl>(layout, options);
}

SchedulerImpl::SchedulerImpl(const ModelLayout& layout,
                             const SchedulerOptions& options)
    : options_(options),
      watermark_blocks_(static_cast<int32_t>(
          options.watermark * static_cast<double>(layout.num_blocks - 1))),
      manager_(layout, options.max_num_seqs, options.enable_prefix_caching,
               options.num_host_blocks),
      tenants_(options_) {
  in_flight_.reserve(options.max_steps_in_flight);
  spare_steps_.reserve(options.max_steps_in_flight + 1);
  running_.reserve(options.max_num_seqs);
}

absl::StatusOr<RequestId> SchedulerImpl::Submit(Request request) {
  BM_RETURN_IF_ERROR(ValidateRequest(request));
  if (names_.contains(request.id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: expected one that is not in use, got '",
                     request.id, "' which names a live request"));
  }
  BM_RETURN_IF_ERROR(ValidateFork(request));
  if (waiting_.size() >= options_.max_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", waiting_.size(), " requests wait (max_waiting ",
        options_.max_waiting, ")"));
  }
  const auto num_prompt = static_cast<int32_t>(request.prompt.size());
  const int64_t queued_tokens = tenants_.queued_tokens();
  if (queued_tokens > 0 &&
      queued_tokens + num_prompt > options_.max_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queued_tokens, " tokens of prompts wait, and ",
        num_prompt, " more are above max_waiting_tokens ",
        options_.max_waiting_tokens));
  }
  EvictionPlan eviction = PlanEviction(request);
  const int32_t length = num_prompt + request.max_tokens - 1;
  const auto [max_chunk, peak] =
      FitPool(length, eviction.compressions, eviction.decode.get(),
              eviction.squeeze.get());
  if (peak > manager_.num_usable()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request can never fit: it needs ", peak, " blocks at its peak (",
        num_prompt, " prompt and ", request.max_tokens,
        " output tokens), the pool has ", manager_.num_usable()));
  }
  const TenantDemand demand{.prompt_tokens = num_prompt, .peak_blocks = peak};
  BM_RETURN_IF_ERROR(tenants_.CheckSubmit(request.scope.tenant, demand));

  RequestState* state = NewState();
  state->id = RequestId{next_request_++};
  state->info = std::make_shared<const RequestInfo>(
      RequestInfo{.id = std::move(request.id),
                  .num_prompt_tokens = num_prompt,
                  .lora = request.scope.lora,
                  .media = request.scope.media,
                  .engine_data = std::move(request.engine_data)});
  state->tokens = std::move(request.prompt);
  state->num_prompt = num_prompt;
  state->max_tokens = request.max_tokens;
  state->stop_token_ids = std::move(request.stop_token_ids);
  std::ranges::sort(state->stop_token_ids);
  state->chain = BlockChain(request.scope);
  state->chain.SetRetention(RetentionOf(request, now_ms_));
  if (!request.fork_of.empty()) {
    state->fork_of = names_.at(request.fork_of);
    // A step that looks at thousands of forks need not compare their prompts.
    state->num_common = NumCommonTokens(*requests_.at(state->fork_of), *state);
  }
  ListFirstPoint(length, layout(), &eviction);
  state->eviction = std::move(eviction);
  requests_.emplace(state->id, state);
  names_.emplace(state->info->id, state->id);
  state->priority = request.priority;
  state->peak_blocks = peak;
  state->max_chunk = max_chunk;
  state->submit_step = next_step_;
  state->tenant = tenants_.Submit(request.scope.tenant, demand);
  JoinQueue(state);
  return state->id;
}

absl::Status SchedulerImpl::Cancel(RequestId request, Effects* effects) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) {
    return absl::NotFoundError(
        absl::StrCat("request: expected a live one, got ", Index(request)));
  }
  RequestState* state = found->second;
  if (state->running) {
    std::erase(running_, state);
  } else {
    LeaveQueue(state);
  }
  Retire(state, FinishReason::kCancelled, absl::OkStatus(), effects);
  return absl::OkStatus();
}

absl::StatusOr<RequestId> SchedulerImpl::Find(absl::string_view id) const {
  const auto found = names_.find(id);
  if (found == names_.end()) {
    return absl::NotFoundError(
        absl::StrCat("request_id: expected a live request, got '", id, "'"));
  }
  return found->second;
}

SchedulerStats SchedulerImpl::stats() const {
  SchedulerStats stats = totals_;
  stats.num_waiting = waiting_.size();
  stats.num_waiting_tokens = tenants_.queued_tokens();
  stats.num_running = static_cast<int32_t>(running_.size());
  stats.num_steps_in_flight = num_steps_in_flight();
  stats.kept_entries_min = kept_.Quantile(0.0);
  stats.kept_entries_median = kept_.Quantile(0.5);
  stats.kept_entries_max = kept_.Quantile(1.0);
  stats.tenants = tenants_.Uses();
  stats.blocks = manager_.stats();
  stats.num_swapped = manager_.host().num_sequences();
  stats.host_blocks = manager_.host().num_blocks();
  stats.used_host_blocks = manager_.host().num_used();
  stats.metadata_bytes = manager_.metadata_bytes();
  return stats;
}

absl::Status SchedulerImpl::ValidateRequest(const Request& request) const {
  if (request.id.empty() || request.id.size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request_id: expected 1 to ",
                                                   kMaxIdBytes, " bytes, got ",
                                                   request.id.size()));
  }
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError(
        "prompt: expected at least one token, got none");
  }
  // Lengths before what is looked at one by one.
  BM_RETURN_IF_ERROR(RequireCount(
      "stop_token_ids", std::ssize(request.stop_token_ids), kMaxStopTokens));
  BM_RETURN_IF_ERROR(
      options_.CheckLength(std::ssize(request.prompt), request.max_tokens));
  BM_RETURN_IF_ERROR(ValidateTokens("prompt", request.prompt));
  BM_RETURN_IF_ERROR(ValidateTokens("stop_token_ids", request.stop_token_ids));
  BM_RETURN_IF_ERROR(
      RequireCount("media", std::ssize(request.scope.media), kMaxMedia));
  BM_RETURN_IF_ERROR(ValidateScope(request.scope, std::ssize(request.prompt)));
  BM_RETURN_IF_ERROR(RequireCount("retention", std::ssize(request.retention),
                                  kMaxRetentionWishes));
  for (size_t i = 0; i < request.retention.size(); ++i) {
    BM_RETURN_IF_ERROR(ValidateWish(i, request.retention[i]));
  }
  if (request.engine_data.size() > kMaxEngineDataBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine_data: expected at most ", kMaxEngineDataBytes,
                     " bytes, got ", request.engine_data.size()));
  }
  return ValidateEviction(request.eviction);
}

RequestState* SchedulerImpl::NewState() {
  if (free_states_.empty()) {
    states_.push_back(std::make_unique<RequestState>());
    states_.back()->index = states_.size() - 1;
    return states_.back().get();
  }
  RequestState* state = free_states_.back();
  free_states_.pop_back();
  return state;
}

void SchedulerImpl::Retire(RequestState* request, FinishReason reason,
                           absl::Status status, Effects* effects) {
  AbortCommand(request, "the request ended before the eviction", effects);
  FinishEffect effect;
  effect.request = request->id;
  effect.reason = reason;
  effect.status = std::move(status);
  effect.num_output_tokens = request->num_outputs();
  effect.num_cached_tokens = request->num_cached_tokens;
  effect.num_preemptions = request->num_preemptions;
  effects->finished.push_back(std::move(effect));
  ++totals_.num_finished;
  if (request->running) LeaveSlot(request);
  tenants_.Finish(request->tenant, request->demand(), request->was_admitted);
  RefreshBar(request->tenant);
  DropSwap(request);
  names_.erase(request->info->id);
  requests_.erase(request->id);
  const uint32_t incarnation = request->incarnation;
  const size_t index = request->index;
  *request = RequestState{};
  request->index = index;
  request->incarnation = incarnation;
  free_states_.push_back(request);
}

void SchedulerImpl::LeaveSlot(RequestState* request) {
  if (request->eviction.squeeze != nullptr) --num_squeezable_;
  if (request->is_spared()) --num_spared_;
  SetDrafts(request, 0);
  prefill_front_.Clear(request);
  tenants_.Reserve(request->tenant,
                   -std::exchange(request->reserved_blocks, 0));
  manager_.Close(request->slot);
  released_.push_back(request->slot);
  request->running = false;
  ++request->incarnation;
  request->slot = kNoSequenceSlot;
  request->num_computed = 0;
  request->num_placeholders = 0;
  request->num_unverified = 0;
  request->num_in_cache = 0;
  request->next_compression = 0;
  request->order_in_flight = false;
  request->restarts = false;
}

void SchedulerImpl::WaitAgain(RequestState* request) {
  LeaveSlot(request);
  JoinQueue(request);
}

void SchedulerImpl::ForgetLeft() {
  std::erase_if(running_,
                [](const RequestState* state) { return !state->running; });
}

}  // namespace blockmgr
