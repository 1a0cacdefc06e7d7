#include "scheduler/request_lifecycle.h"

#include <span>
#include <utility>

#include "scheduler/block_promises.h"

namespace blockmgr {
namespace {

// The most cached blocks that one Update compares to keep the order of
// SchedulingPolicy kPrefix: about 15 us. A look costs at least kBlocksPerLook.
constexpr int32_t kMaxRefreshedBlocks = 256;
constexpr int32_t kBlocksPerLook = 16;

}  // namespace

void RequestLifecycle::Retire(RequestState* request, FinishReason reason,
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
  ++state_.totals.num_finished;
  if (request->running) LeaveSlot(request);
  state_.tenants.Finish(request->tenant, request->demand(),
                        request->was_admitted);
  RefreshBar(request->tenant);
  DropSwap(request);
  state_.requests.Remove(request);
}

void RequestLifecycle::LeaveSlot(RequestState* request) {
  if (request->eviction.squeeze != nullptr) --state_.num_squeezable;
  if (request->is_spared()) --state_.num_spared;
  SetDrafts(request, 0);
  state_.prefill_front.Clear(request);
  state_.tenants.Reserve(request->tenant,
                         -std::exchange(request->reserved_blocks, 0));
  state_.manager.Close(request->slot);
  state_.released.push_back(request->slot);
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

void RequestLifecycle::WaitAgain(RequestState* request) {
  LeaveSlot(request);
  JoinQueue(request);
}

void RequestLifecycle::ForgetLeft() {
  std::erase_if(state_.running.all(),
                [](const RequestState* state) { return !state->running; });
}

WaitingPlace RequestLifecycle::PlaceOf(const RequestState& request,
                                       int32_t num_cached_tokens) const {
  WaitingPlace place{.arrival = Index(request.id)};
  if (state_.options().policy == SchedulingPolicy::kPriority) {
    place.rank = request.priority;
  } else if (state_.options().policy == SchedulingPolicy::kPrefix) {
    // All waiting requests age at the same rate. So a rank that counts the step
    // of submission need not change as time goes on.
    place.rank = int64_t{state_.options().prefix_aging} *
                     static_cast<int64_t>(request.submit_step) -
                 num_cached_tokens;
  }
  return place;
}

void RequestLifecycle::RefreshBar(TenantId tenant) {
  state_.waiting.SetBarred(tenant, state_.IsFull(tenant));
}

void RequestLifecycle::JoinQueue(RequestState* request) {
  const bool is_new = !request->was_admitted;
  if (state_.options().fair_share) {
    if (is_new && !state_.waiting.Waits(request->tenant)) {
      state_.tenants.Lift(request->tenant, state_.waiting.least_service());
    }
    state_.waiting.SetService(request->tenant,
                              state_.tenants.service(request->tenant));
  }
  if (is_new) request->place = PlaceOf(*request, 0);
  request->lane = state_.LaneOf(*request);
  if (state_.manager.prefix_caching()) {
    request->chain.Extend(request->tokens, state_.layout().page_size);
  }
  state_.waiting.Insert(request);
  RefreshBar(request->tenant);
  // A request that has run keeps its place, whatever the cache has.
  if (is_new && state_.options().policy == SchedulingPolicy::kPrefix) {
    state_.prefix_hints.Reserve(state_.waiting.size());
    RefreshPlace(request);
  }
}

void RequestLifecycle::LeaveQueue(RequestState* request) {
  state_.prefix_hints.Remove(request);
  state_.waiting.Erase(request);
  RefreshBar(request->tenant);
  if (!state_.waiting.Waits(request->tenant)) {
    state_.tenants.Leave(request->tenant);
  }
}

void RequestLifecycle::RefreshPlaces() {
  if (state_.options().policy != SchedulingPolicy::kPrefix) return;
  const uint64_t dropped = state_.manager.stats().dropped_entries;
  for (int32_t left = kMaxRefreshedBlocks; left > 0;) {
    // The cache may have dropped a part of the first request's prefix. Then
    // another request may become the first.
    const RequestState* front = state_.waiting.front();
    RequestState* request = nullptr;
    if (front == nullptr || front->was_admitted ||
        front->hint.dropped == dropped) {
      request = state_.prefix_hints.PopStale();
      if (request == nullptr) return;
    } else {
      request = state_.requests.Own(front);
    }
    left -= kBlocksPerLook + RefreshPlace(request);
  }
}

int32_t RequestLifecycle::RefreshPlace(RequestState* request) {
  if (!state_.manager.prefix_caching()) return 0;
  state_.prefix_hints.Remove(request);
  const PrefixMatch& match = finder_.Find(*request, request->eviction);
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_pages = match.num_tokens / page_size;
  request->hint.dropped = state_.manager.stats().dropped_entries;
  state_.prefix_hints.Add(
      request, num_pages,
      request->eviction.MaxCachedTokens(request->num_cacheable(), 0) /
          page_size);
  state_.waiting.Move(request, PlaceOf(*request, match.num_tokens));
  RefreshBar(request->tenant);
  return num_pages;
}

void RequestLifecycle::AbortCommand(RequestState* request, const char* why,
                                    Effects* effects) {
  if (request->command == nullptr) return;
  EvictionEffect effect;
  effect.request = request->id;
  effect.command = request->command->number;
  effect.status = absl::AbortedError(why);
  effects->evictions.push_back(std::move(effect));
  request->command.reset();
}

void RequestLifecycle::DropSwap(RequestState* request) {
  if (request->swap == kNoSwap) return;
  state_.manager.DropSwapped(request->swap);
  state_.dropped_swaps.push_back(request->swap);
  request->swap = kNoSwap;
}

void RequestLifecycle::SetDrafts(RequestState* request, int32_t num_drafts) {
  // A rejected query cannot be taken out of a scorer's state, so a request with
  // such a state has no drafts.
  const bool may_have = state_.options().num_speculative_tokens > 0 &&
                        request->eviction.scorer_state == ScorerState::kNone;
  const int32_t before = request->num_drafts;
  request->num_drafts = may_have ? num_drafts : 0;
  state_.num_speculating +=
      (request->num_drafts > 0 ? 1 : 0) - (before > 0 ? 1 : 0);
}

void RequestLifecycle::UpdateFront(RequestState* request) {
  if (!state_.manager.prefix_caching()) return;
  const SequenceCache& sequence = state_.manager.sequence(request->slot);
  const std::span<const BlockKey> keys = request->chain.keys();
  const int32_t next = sequence.num_published;
  // A refused eviction may have taken blocks that were to be published.
  const bool publishes =
      sequence.first().region == nullptr &&
      sequence.first().pending == nullptr &&
      sequence.chain_serial != kNoSerial &&
      (next + 1) * state_.layout().page_size <= request->num_prompt;
  if (publishes && next < std::ssize(keys)) {
    state_.prefill_front.Set(request, keys[next]);
  } else {
    state_.prefill_front.Clear(request);
  }
}

void RequestLifecycle::RefreshReservation(RequestState* request) {
  const int32_t needed = CountBlocksToReserve(state_, *request);
  if (needed == request->reserved_blocks) return;
  state_.tenants.Reserve(request->tenant, needed - request->reserved_blocks);
  request->reserved_blocks = needed;
  RefreshBar(request->tenant);
}

}  // namespace blockmgr
