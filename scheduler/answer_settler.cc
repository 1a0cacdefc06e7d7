// Settling the engine's answers, refused evictions among them.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/compression_points.h"
#include "scheduler/require_range.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxTokenDataBytes = 16384;

absl::Status ValidateTokenData(const StepInFlight& step,
                               const StepResult& result) {
  if (!result.token_data.empty() &&
      result.token_data.size() != step.runs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_data: expected none or ", step.runs.size(),
                     ", got ", result.token_data.size()));
  }
  for (size_t i = 0; i < result.token_data.size(); ++i) {
    const int64_t most = step.runs[i].samples ? kMaxTokenDataBytes : 0;
    if (std::ssize(result.token_data[i]) <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token_data[", i, "]: expected at most ", most, " bytes",
                     most == 0 ? " of a run that samples nothing" : "",
                     ", got ", result.token_data[i].size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SchedulerImpl::Update(const StepResult& result, Effects* effects) {
  BM_RETURN_IF_ERROR(ValidateResult(result));
  StepInFlight step = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  manager_.Acknowledge(step.id);
  ++totals_.num_steps;
  LoseBlocks(result.lost_blocks);
  LoseHostBlocks(result.lost_host_blocks);
  size_t num_accepted = 0;
  for (size_t i = 0; i < step.runs.size(); ++i) {
    RunAnswer answer{.sampled = result.sampled[i]};
    if (!result.num_accepted.empty()) {
      answer.accepted = std::span(result.accepted)
                            .subspan(num_accepted, result.num_accepted[i]);
      num_accepted += answer.accepted.size();
    }
    if (!result.num_drafts.empty()) answer.num_drafts = result.num_drafts[i];
    if (!result.token_data.empty()) answer.data = result.token_data[i];
    SettleRun(step.runs[i], answer, effects);
  }
  size_t next = 0;
  for (const StepInFlight::Order& order : step.orders) {
    const auto num_outcomes = static_cast<size_t>(order.num_outcomes());
    SettleOrder(step, order,
                std::span(result.evictions).subspan(next, num_outcomes),
                effects);
    next += num_outcomes;
  }
  if (!effects->finished.empty()) ForgetLeft();
  for (const TenantId tenant : served_tenants_) {
    waiting_.SetService(tenant, tenants_.service(tenant));
  }
  served_tenants_.clear();
  RefreshPlaces();
  step.runs.clear();
  step.orders.clear();
  spare_steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void SchedulerImpl::UpdateFront(RequestState* request) {
  if (!manager_.prefix_caching()) return;
  const SequenceCache& sequence = manager_.sequence(request->slot);
  const std::span<const BlockKey> keys = request->chain.keys();
  const int32_t next = sequence.num_published;
  // A refused eviction may have taken blocks that were to be published.
  const bool publishes = sequence.region == nullptr &&
                         !sequence.pending.has_value() &&
                         sequence.chain_serial != kNoSerial &&
                         (next + 1) * layout().page_size <= request->num_prompt;
  if (publishes && next < std::ssize(keys)) {
    prefill_front_.Set(request, keys[next]);
  } else {
    prefill_front_.Clear(request);
  }
}

absl::Status SchedulerImpl::ValidateResult(const StepResult& result) const {
  if (in_flight_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step: expected none, as none is in flight, got ", Index(result.id)));
  }
  const StepInFlight& step = in_flight_.front();
  if (result.id != step.id) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected ", Index(step.id),
                     " (the oldest in flight), got ", Index(result.id)));
  }
  if (result.sampled.size() != step.runs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampled: expected ", step.runs.size(), " tokens, got ",
                     result.sampled.size()));
  }
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (step.runs[i].samples != (result.sampled[i] >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampled[", i, "]: expected ",
                       step.runs[i].samples ? "a token id of at least 0" : "-1",
                       ", got ", result.sampled[i]));
    }
  }
  BM_RETURN_IF_ERROR(ValidateDrafts(step, result));
  BM_RETURN_IF_ERROR(ValidateTokenData(step, result));
  int64_t num_orders = 0;
  for (const StepInFlight::Order& order : step.orders) {
    num_orders += order.num_outcomes();
  }
  if (std::ssize(result.evictions) != num_orders) {
    return absl::InvalidArgumentError(
        absl::StrCat("evictions: expected ", num_orders, " outcomes, got ",
                     result.evictions.size()));
  }
  for (size_t i = 0; i < result.lost_blocks.size(); ++i) {
    const int32_t block = Index(result.lost_blocks[i]);
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat("lost_blocks[", i, "]"), block,
                                    1, layout().num_blocks - 1));
  }
  if (options_.num_host_blocks == 0 && !result.lost_host_blocks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lost_host_blocks: expected none, as the engine has no ",
                     "host blocks, got ", result.lost_host_blocks.size()));
  }
  for (size_t i = 0; i < result.lost_host_blocks.size(); ++i) {
    const int32_t block = Index(result.lost_host_blocks[i]);
    BM_RETURN_IF_ERROR(RequireRange(absl::StrCat("lost_host_blocks[", i, "]"),
                                    block, 0, options_.num_host_blocks - 1));
  }
  return ValidateOutcomes(step, result);
}

absl::Status SchedulerImpl::ValidateOutcomes(const StepInFlight& step,
                                             const StepResult& result) const {
  size_t next = 0;
  for (const StepInFlight::Order& order : step.orders) {
    const StepInFlight::Run& run = step.runs[order.run];
    for (int32_t i = 0; i < order.num_outcomes(); ++i) {
      const size_t index = next++;
      const EvictionOutcome& outcome = result.evictions[index];
      if (!outcome.ok || IsStale(run)) continue;
      const absl::Status status =
          manager_.ValidateCounts(run.request->slot, outcome.counts,
                                  order.group_of(i), outcome.layout_checksum);
      if (status.ok()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "evictions[", index, "] (request \"", run.request->info->id,
          "\", layer group ", order.group_of(i), "): ", status.message()));
    }
  }
  return absl::OkStatus();
}

void SchedulerImpl::SettleRun(const StepInFlight::Run& run,
                              const RunAnswer& answer, Effects* effects) {
  if (IsStale(run)) return;
  RequestState& request = *run.request;
  const SequenceCache& sequence = manager_.sequence(request.slot);
  const int32_t begin = sequence.num_settled;
  if (!answer.data.empty()) {
    effects->token_data.push_back(
        {request.id, request.num_outputs(), std::string(answer.data)});
  }
  bool stops = false;
  // What drafts fill is published under their tokens.
  const int32_t num_tokens =
      run.num_drafts == 0 ? run.num_tokens
                          : TakeAccepted(run, answer.accepted, effects, &stops);
  if (manager_.WillPublish(request.slot, num_tokens)) {
    request.chain.Extend(request.tokens, layout().page_size);
  }
  const int32_t published = sequence.num_published;
  manager_.Commit(request.slot, num_tokens, request.tokens, request.chain);
  if (run.num_drafts > 0) VoidRejected(run, num_tokens);
  if (options_.policy == SchedulingPolicy::kPrefix) {
    for (int32_t i = published; i < sequence.num_published; ++i) {
      prefix_hints_.OnPublished(request.chain.keys()[i]);
    }
  }
  // Behind its prompt, too, what came back was announced until now.
  if (begin < request.num_prompt || request.hint.computing.has_value()) {
    UpdateFront(&request);
  }
  totals_.num_computed_tokens += num_tokens;
  const int32_t end = begin + num_tokens;
  totals_.num_recomputed_tokens +=
      std::max(0, std::min(end, request.max_settled) - begin);
  request.max_settled = std::max(request.max_settled, end);
  if (!run.samples) return;
  --request.num_placeholders;
  if (!stops) stops = AddOutput(&request, answer.sampled, effects);
  if (stops || request.num_outputs() >= request.max_tokens) {
    Retire(&request, stops ? FinishReason::kStop : FinishReason::kLength,
           absl::OkStatus(), effects);
    return;
  }
  if (answer.num_drafts != request.num_drafts) {
    SetDrafts(&request, answer.num_drafts);
  }
}

bool SchedulerImpl::AddOutput(RequestState* request, int32_t token,
                              Effects* effects) {
  effects->tokens.push_back({request->id, token, request->num_outputs()});
  request->tokens.push_back(token);
  ++totals_.num_output_tokens;
  if (options_.fair_share) {
    tenants_.Serve(request->tenant, kOutputTokenService);
    served_tenants_.push_back(request->tenant);
  }
  return std::ranges::binary_search(request->stop_token_ids, token);
}

void SchedulerImpl::SettleOrder(const StepInFlight& step,
                                const StepInFlight::Order& order,
                                std::span<const EvictionOutcome> outcomes,
                                Effects* effects) {
  const StepInFlight::Run& run = step.runs[order.run];
  if (IsStale(run) && order.region != kNoRegion && outcomes.front().ok) {
    dropped_regions_.push_back(order.region);
  }
  EvictionEffect effect;
  effect.request = run.id;
  effect.command = order.point.command;
  effect.cut = order.point.cut;
  if (IsStale(run)) {
    // The request's own evictions are replayed when it runs again.
    if (effect.command == 0) return;
    effect.status = absl::AbortedError(
        "the request ended, was preempted or lost blocks before the eviction");
    effects->evictions.push_back(std::move(effect));
    return;
  }
  RequestState& request = *run.request;
  request.order_in_flight = false;
  if (order.futile) {
    if (effect.command == 0) return;
    TellKept(request, &effect);
    effects->evictions.push_back(std::move(effect));
    return;
  }
  const auto refused = std::ranges::find(outcomes, false, &EvictionOutcome::ok);
  if (refused != outcomes.end()) {
    effect.status = absl::InternalError(
        absl::StrCat("the engine refused the eviction: ", refused->error));
    effects->evictions.push_back(effect);
    AbortOrder(&request, order, outcomes, effect.status, effects);
    return;
  }
  const EvictionReceipt receipt = CommitOrder(&request, order, outcomes);
  effect.evicted_entries = receipt.evicted_entries;
  effect.freed_blocks = receipt.freed_blocks;
  effect.freed_bytes = receipt.freed_blocks * layout().block_bytes();
  effect.kept_entries = outcomes.front().counts;
  ++totals_.num_evictions;
  totals_.evicted_entries += effect.evicted_entries;
  totals_.evicted_blocks += effect.freed_blocks;
  totals_.evicted_bytes += effect.freed_bytes;
  for (const EvictionOutcome& outcome : outcomes) kept_.Add(outcome.counts);
  if (!order.point.is_planned) {
    // From now on a part of the request: a recomputation replays it.
    CompressionPoint recorded = order.point;
    recorded.command = 0;
    recorded.is_planned = true;
    recorded.is_recorded = true;
    request.eviction.compressions.insert(
        request.eviction.compressions.begin() + request.next_compression++,
        std::move(recorded));
  }
  RefreshReservation(&request);
  effects->evictions.push_back(std::move(effect));
}

EvictionReceipt SchedulerImpl::CommitOrder(
    RequestState* request, const StepInFlight::Order& order,
    std::span<const EvictionOutcome> outcomes) {
  // Those of windows first: all are published by the name of group 0's.
  EvictionReceipt windows;
  for (int32_t i = 1; i < order.num_outcomes(); ++i) {
    const EvictionReceipt of_group =
        manager_.CommitWindowEviction(request->slot, order.group_of(i),
                                      outcomes[static_cast<size_t>(i)].counts);
    windows.evicted_entries += of_group.evicted_entries;
    windows.freed_blocks += of_group.freed_blocks;
  }
  EvictionReceipt receipt =
      CommitFirstGroup(request, order, outcomes.front().counts);
  receipt.evicted_entries += windows.evicted_entries;
  receipt.freed_blocks += windows.freed_blocks;
  return receipt;
}

EvictionReceipt SchedulerImpl::CommitFirstGroup(
    RequestState* request, const StepInFlight::Order& order,
    std::span<const int32_t> counts) {
  if (order.region == kNoRegion) {
    return manager_.CommitEviction(request->slot, counts);
  }
  // Orders are carried out one at a time: it is the last of those begun.
  const int32_t end = request->next_compression;
  RegionPublication publication;
  publication.name = {.plan = request->eviction.sharing->plan,
                      .history = EncodeHistory(
                          std::span(request->eviction.compressions).first(end)),
                      .length = order.point.length};
  request->chain.Extend(request->tokens, layout().page_size);
  publication.chain = &request->chain;
  publication.tokens = request->tokens;
  const EvictionReceipt receipt =
      manager_.CommitEviction(request->slot, counts, &publication);
  if (!receipt.cached) dropped_regions_.push_back(order.region);
  return receipt;
}

void SchedulerImpl::AbortOrder(RequestState* request,
                               const StepInFlight::Order& order,
                               std::span<const EvictionOutcome> outcomes,
                               const absl::Status& why, Effects* effects) {
  ++totals_.num_refused_evictions;
  if (order.region != kNoRegion && outcomes.front().ok) {
    dropped_regions_.push_back(order.region);  // the engine has kept it
  }
  for (int32_t i = 0; i < order.num_outcomes(); ++i) {
    manager_.AbortEviction(request->slot, order.group_of(i));
  }
  if (order.point.is_planned) {
    const absl::Status fits = LeaveOutLast(request);
    if (!fits.ok()) {
      Retire(request, FinishReason::kFailed,
             absl::InternalError(
                 absl::StrCat(why.message(), "; ", fits.message())),
             effects);
      return;
    }
  } else if (order.point.is_squeeze()) {
    request->eviction.squeeze.reset();
    --num_squeezable_;
  }
  // The request is computed again if entries of some group were already moved,
  // because its old tables are then damaged. It also waits if the blocks that
  // the eviction should have given back are reserved by other requests of the
  // tenant.
  const bool has_moved = std::ranges::any_of(outcomes, &EvictionOutcome::ok);
  const int32_t change = ToReserve(*request) - request->reserved_blocks;
  const bool has_room =
      change <= 0 || tenants_.MayReserve(request->tenant, change);
  if (has_moved || !has_room) {
    WaitAgain(request);
    ForgetLeft();
    return;
  }
  RefreshReservation(request);
  UpdateFront(request);
}

absl::Status SchedulerImpl::LeaveOutLast(RequestState* request) {
  // A request has one order in flight at a time, so the refused eviction is the
  // last one that was begun.
  const int32_t index = request->next_compression - 1;
  std::vector<CompressionPoint> points = request->eviction.compressions;
  const int32_t length = points[index].length;
  points.erase(points.begin() + index);
  // What follows is not shared: a prefix that was compressed less often takes
  // more blocks than the requests which would start on it may ever get.
  for (int32_t i = index; i < std::ssize(points); ++i) {
    points[i].is_shared = false;
  }
  std::unique_ptr<DecodeCompression> decode;
  if (request->eviction.decode != nullptr) {
    decode = std::make_unique<DecodeCompression>(*request->eviction.decode);
    decode->refused_until = std::max(decode->refused_until, length);
  }
  const Fit fit = FitPool(request->last_length(), points, decode.get(),
                          request->eviction.squeeze.get());
  const int32_t peak = fit.peak_blocks;
  const auto fail = [peak](const char* whose, int32_t most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("without it the request needs ", peak,
                     " blocks at its peak, ", whose, most));
  };
  if (peak > manager_.num_usable()) {
    return fail("the pool has ", manager_.num_usable());
  }
  const int32_t max_blocks = tenants_.limits(request->tenant).max_blocks;
  if (max_blocks > 0 && peak > max_blocks) {
    return fail("the quota max_blocks of its tenant is ", max_blocks);
  }
  request->eviction.compressions = std::move(points);
  request->eviction.decode = std::move(decode);
  request->next_compression = index;
  request->peak_blocks = peak;
  request->max_chunk = fit.max_chunk;
  return absl::OkStatus();
}

}  // namespace blockmgr
