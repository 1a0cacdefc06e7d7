#include "scheduler/answer_settler.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"

namespace blockmgr {

absl::Status AnswerSettler::Settle(const StepResult& result, Effects* effects) {
  BM_RETURN_IF_ERROR(ValidateResult(state_, result));
  StepInFlight step = std::move(state_.in_flight.front());
  state_.in_flight.erase(state_.in_flight.begin());
  state_.manager.Acknowledge(step.id);
  ++state_.totals.num_steps;
  LoseBlocks(result.lost_blocks);
  LoseHostBlocks(result.lost_host_blocks);
  size_t num_accepted = 0;
  auto logprobs = result.logprobs.begin();
  auto stop = result.stop_matches.begin();
  for (size_t i = 0; i < step.runs.size(); ++i) {
    RunAnswer answer{.sampled = result.sampled[i]};
    if (!result.num_accepted.empty()) {
      answer.accepted = std::span(result.accepted)
                            .subspan(num_accepted, result.num_accepted[i]);
      num_accepted += answer.accepted.size();
    }
    if (!result.num_drafts.empty()) answer.num_drafts = result.num_drafts[i];
    if (!result.token_data.empty()) answer.data = result.token_data[i];
    if (logprobs != result.logprobs.end() &&
        logprobs->run == static_cast<int32_t>(i)) {
      answer.logprobs = &*logprobs++;
    }
    if (stop != result.stop_matches.end() &&
        stop->run == static_cast<int32_t>(i)) {
      answer.stop = (stop++)->stop;
    }
    SettleRun(step.runs[i], answer, effects);
  }
  size_t next = 0;
  for (const StepInFlight::Order& order : step.orders) {
    const size_t num_outcomes = order.groups.size();
    SettleOrder(step, order,
                std::span(result.evictions).subspan(next, num_outcomes),
                effects);
    next += num_outcomes;
  }
  if (!effects->finished.empty()) lifecycle_.ForgetLeft();
  for (const TenantId tenant : served_tenants_) {
    state_.waiting.SetService(tenant, state_.tenants.service(tenant));
  }
  served_tenants_.clear();
  lifecycle_.RefreshPlaces();
  step.runs.clear();
  step.orders.clear();
  state_.spare_steps.push_back(std::move(step));
  return absl::OkStatus();
}

void AnswerSettler::SettleRun(const StepInFlight::Run& run,
                              const RunAnswer& answer, Effects* effects) {
  if (run.is_stale()) return;
  RequestState& request = *state_.requests.Own(run.request);
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  const int32_t begin = sequence.num_settled;
  if (!answer.data.empty()) {
    effects->token_data.push_back(
        {request.id, request.num_outputs(), std::string(answer.data)});
  }
  if (answer.logprobs != nullptr) {
    TellPromptLogProbs(request, begin, *answer.logprobs, effects);
  }
  const int32_t num_outputs = request.num_outputs();
  bool stops = false;
  // Accepted drafts become tokens first, because Commit publishes full blocks
  // under their tokens.
  const int32_t num_tokens =
      run.num_drafts == 0 ? run.num_tokens
                          : TakeAccepted(run, answer.accepted, effects, &stops);
  if (state_.manager.WillPublish(request.slot, num_tokens)) {
    request.chain.Extend(request.tokens, state_.layout().page_size);
  }
  const int32_t published = sequence.num_published;
  state_.manager.Commit(request.slot, num_tokens, request.tokens,
                        request.chain);
  if (run.num_drafts > 0) VoidRejected(run, num_tokens);
  if (state_.options().policy == SchedulingPolicy::kPrefix) {
    for (int32_t i = published; i < sequence.num_published; ++i) {
      state_.prefix_hints.OnPublished(request.chain.keys()[i]);
    }
  }
  // A resumed request computes its outputs again. So its blocks are registered
  // in PrefillFront also behind the prompt.
  if (begin < request.num_prompt || request.hint.computing.has_value()) {
    lifecycle_.UpdateFront(&request);
  }
  state_.totals.num_computed_tokens += num_tokens;
  const int32_t end = begin + num_tokens;
  state_.totals.num_recomputed_tokens +=
      std::max(0, std::min(end, request.max_settled) - begin);
  request.max_settled = std::max(request.max_settled, end);
  if (!run.samples) return;
  --request.num_placeholders;
  std::optional<int32_t> stop;
  if (!stops) {
    stops = AddOutput(&request, answer.sampled, effects);
    if (!stops) stop = answer.stop;
  }
  if (answer.logprobs != nullptr) {
    TellOutputLogProbs(request, num_outputs, *answer.logprobs, effects);
  }
  stops |= stop.has_value();
  if (stops || request.num_outputs() >= request.max_tokens) {
    lifecycle_.Retire(&request,
                      stops ? FinishReason::kStop : FinishReason::kLength,
                      absl::OkStatus(), effects);
    effects->finished.back().stop = stop;
    return;
  }
  if (answer.num_drafts != request.num_drafts) {
    lifecycle_.SetDrafts(&request, answer.num_drafts);
  }
}

int32_t AnswerSettler::TakeAccepted(const StepInFlight::Run& run,
                                    std::span<const int32_t> accepted,
                                    Effects* effects, bool* stops) {
  int32_t num_taken = 0;
  for (const int32_t token : accepted) {
    *stops = AddOutput(state_.requests.Own(run.request), token, effects);
    ++num_taken;
    if (*stops) break;
  }
  state_.totals.num_draft_tokens += run.num_drafts;
  state_.totals.num_accepted_tokens += num_taken;
  // The last output is never an input.
  return num_taken + (*stops ? 0 : 1);
}

void AnswerSettler::VoidRejected(const StepInFlight::Run& run,
                                 int32_t num_settled) {
  RequestState& request = *state_.requests.Own(run.request);
  const int32_t num_void = run.num_tokens - num_settled;
  state_.manager.Rollback(request.slot, num_void);
  request.num_computed -= num_void;
  request.num_placeholders -= run.num_drafts;
  request.num_unverified = 0;
}

bool AnswerSettler::AddOutput(RequestState* request, int32_t token,
                              Effects* effects) {
  effects->tokens.push_back({request->id, token, request->num_outputs()});
  request->tokens.push_back(token);
  ++state_.totals.num_output_tokens;
  if (state_.options().fair_share) {
    state_.tenants.Serve(request->tenant, kOutputTokenService);
    served_tenants_.push_back(request->tenant);
  }
  return std::ranges::binary_search(request->stop_token_ids, token) &&
         request->num_outputs() > request->min_tokens;
}

void AnswerSettler::SettleOrder(const StepInFlight& step,
                                const StepInFlight::Order& order,
                                std::span<const EvictionOutcome> outcomes,
                                Effects* effects) {
  const StepInFlight::Run& run = step.runs[order.run];
  if (run.is_stale() && order.region != kNoRegion && outcomes.front().ok) {
    state_.dropped_regions.push_back(order.region);
  }
  EvictionEffect effect;
  effect.request = run.id;
  effect.command = order.point.command;
  effect.cut = order.point.cut;
  if (run.is_stale()) {
    // The request's own evictions are replayed when it runs again.
    if (effect.command == 0) return;
    effect.status = absl::AbortedError(
        "the request ended, was preempted or lost blocks before the eviction");
    effects->evictions.push_back(std::move(effect));
    return;
  }
  RequestState& request = *state_.requests.Own(run.request);
  request.order_in_flight = false;
  if (order.is_futile()) {
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
  effect.freed_bytes = receipt.freed_blocks * state_.layout().block_bytes();
  effect.kept_entries = outcomes.front().counts;
  ++state_.totals.num_evictions;
  state_.totals.evicted_entries += effect.evicted_entries;
  state_.totals.evicted_blocks += effect.freed_blocks;
  state_.totals.evicted_bytes += effect.freed_bytes;
  for (const EvictionOutcome& outcome : outcomes) {
    state_.kept.Add(outcome.counts);
  }
  if (!order.point.is_planned) {
    // From now on the eviction is a part of the request, and a recomputation
    // replays it.
    CompressionPoint recorded = order.point;
    recorded.command = 0;
    recorded.is_planned = true;
    recorded.is_recorded = true;
    request.eviction.compressions.insert(
        request.eviction.compressions.begin() + request.next_compression++,
        std::move(recorded));
  }
  lifecycle_.RefreshReservation(&request);
  effects->evictions.push_back(std::move(effect));
}

EvictionReceipt AnswerSettler::CommitOrder(
    RequestState* request, const StepInFlight::Order& order,
    std::span<const EvictionOutcome> outcomes) {
  // A request has one order at a time, so this order is the last one that was
  // begun.
  const int32_t end = request->next_compression;
  RegionPublication publication;
  if (order.region != kNoRegion) {
    publication.name = {
        .plan = request->eviction.sharing->plan,
        .history =
            EncodeHistory(std::span(request->eviction.compressions).first(end)),
        .length = order.point.length};
    request->chain.Extend(request->tokens, state_.layout().page_size);
    publication.chain = &request->chain;
    publication.tokens = request->tokens;
  }
  EvictionReceipt receipt;
  const auto commit = [&](size_t i, const RegionPublication* published) {
    const EvictionReceipt of_group = state_.manager.CommitEviction(
        request->slot, order.groups[i], outcomes[i].counts, published);
    receipt.evicted_entries += of_group.evicted_entries;
    receipt.freed_blocks += of_group.freed_blocks;
    receipt.cached = of_group.cached;
  };
  // Group 0 comes last, because its commit publishes the regions of all groups
  // under one name.
  for (size_t i = 1; i < order.groups.size(); ++i) commit(i, nullptr);
  commit(0, order.region == kNoRegion ? nullptr : &publication);
  if (order.region != kNoRegion && !receipt.cached) {
    state_.dropped_regions.push_back(order.region);
  }
  return receipt;
}

void AnswerSettler::AbortOrder(RequestState* request,
                               const StepInFlight::Order& order,
                               std::span<const EvictionOutcome> outcomes,
                               const absl::Status& why, Effects* effects) {
  ++state_.totals.num_refused_evictions;
  if (order.region != kNoRegion && outcomes.front().ok) {
    // The engine has kept the region.
    state_.dropped_regions.push_back(order.region);
  }
  for (const int32_t group : order.groups) {
    state_.manager.AbortEviction(request->slot, group);
  }
  if (order.point.is_planned) {
    const absl::Status fits = LeaveOutLast(request);
    if (!fits.ok()) {
      lifecycle_.Retire(request, FinishReason::kFailed,
                        absl::InternalError(
                            absl::StrCat(why.message(), "; ", fits.message())),
                        effects);
      return;
    }
  } else if (order.point.is_squeeze()) {
    request->eviction.squeeze.reset();
    --state_.num_squeezable;
  }
  // The request is computed again if entries of some group were already moved,
  // because its old tables are then damaged. It also waits if the blocks that
  // the eviction should have given back are reserved by other requests of the
  // tenant.
  const bool has_moved = std::ranges::any_of(outcomes, &EvictionOutcome::ok);
  const int32_t change =
      CountBlocksToReserve(state_, *request) - request->reserved_blocks;
  const bool has_room =
      change <= 0 || state_.tenants.MayReserve(request->tenant, change);
  if (has_moved || !has_room) {
    lifecycle_.WaitAgain(request);
    lifecycle_.ForgetLeft();
    return;
  }
  lifecycle_.RefreshReservation(request);
  lifecycle_.UpdateFront(request);
}

absl::Status AnswerSettler::LeaveOutLast(RequestState* request) {
  // A request has one order in flight at a time, so the refused eviction is the
  // last one that was begun.
  const int32_t index = request->next_compression - 1;
  std::vector<CompressionPoint> points = request->eviction.compressions;
  const int32_t length = points[index].length;
  points.erase(points.begin() + index);
  // Later regions are not shared. A prefix that was compressed less often takes
  // more blocks than requests that start with it may ever get.
  for (int32_t i = index; i < std::ssize(points); ++i) {
    points[i].is_shared = false;
  }
  std::unique_ptr<DecodeCompression> decode;
  if (request->eviction.decode != nullptr) {
    decode = std::make_unique<DecodeCompression>(*request->eviction.decode);
    decode->refused_until = std::max(decode->refused_until, length);
  }
  const PoolFit fit =
      FitPool(state_.layout(), state_.options(), request->last_length(), points,
              decode.get(), request->eviction.squeeze.get());
  const int32_t peak = fit.peak_blocks;
  const auto fail = [peak](const char* whose, int32_t most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("without it the request needs ", peak,
                     " blocks at its peak, ", whose, most));
  };
  if (peak > state_.manager.num_usable()) {
    return fail("the pool has ", state_.manager.num_usable());
  }
  const int32_t max_blocks = state_.tenants.limits(request->tenant).max_blocks;
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

void AnswerSettler::TellKept(const RequestState& request,
                             EvictionEffect* effect) const {
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  // Another eviction may have covered more in the meantime.
  effect->cut = std::max(effect->cut, sequence.cut());
  effect->kept_entries.assign(state_.layout().pages_per_block(),
                              effect->cut - sequence.cut());
  if (sequence.first().region == nullptr) return;
  for (size_t i = 0; i < effect->kept_entries.size(); ++i) {
    effect->kept_entries[i] += sequence.first().region->kept[i];
  }
}

}  // namespace blockmgr
