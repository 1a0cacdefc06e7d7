// Who waits where.

#include <utility>

#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Cached blocks that are compared in one Update to keep SchedulingPolicy
// kPrefix in order: about 15 us. A look costs at least kBlocksPerLook.
constexpr int32_t kMaxRefreshedBlocks = 256;
constexpr int32_t kBlocksPerLook = 16;

}  // namespace

bool SchedulerImpl::RunsBefore(const RequestState* a,
                               const RequestState* b) const {
  if (options_.policy == SchedulingPolicy::kPriority &&
      a->priority != b->priority) {
    return a->priority < b->priority;
  }
  return a->id < b->id;
}

WaitingPlace SchedulerImpl::PlaceOf(const RequestState& request,
                                    int32_t num_cached_tokens) const {
  WaitingPlace place{.arrival = Index(request.id)};
  if (options_.policy == SchedulingPolicy::kPriority) {
    place.rank = request.priority;
  } else if (options_.policy == SchedulingPolicy::kPrefix) {
    // All who wait age alike: when they came is all that has to be kept.
    place.rank = int64_t{options_.prefix_aging} *
                     static_cast<int64_t>(request.submit_step) -
                 num_cached_tokens;
  }
  return place;
}

uint8_t SchedulerImpl::LaneOf(const RequestState& request) const {
  uint8_t lane = 0;
  // A fork has nearly all of its prompt from its parent, as long as there is
  // one; who comes back from the host tier has all of it.
  const bool is_at_hand =
      request.swap != kNoSwap || requests_.contains(request.fork_of);
  if (IsLong(request) && !is_at_hand) lane |= kLongPromptLane;
  if (request.eviction.scorer_state != ScorerState::kNone)
    lane |= kScorerStateLane;
  return lane;
}

int32_t SchedulerImpl::LookOutsideLane(RequestState* request, uint8_t lane) {
  if ((request->lane & lane) != 0) return 0;
  // It has lost what spared it: a swap, or its parent. Others are long, and
  // have little to compute: they are in no lane.
  if ((LaneOf(*request) & lane) != 0) decision_.misplaced.push_back(request);
  return 1;
}

bool SchedulerImpl::IsFull(TenantId tenant) const {
  const RequestState* first = waiting_.first(tenant);
  return first != nullptr && !tenants_.MayReserve(tenant, first->peak_blocks);
}

void SchedulerImpl::RefreshBar(TenantId tenant) {
  waiting_.SetBarred(tenant, IsFull(tenant));
}

void SchedulerImpl::JoinQueue(RequestState* request) {
  const bool is_new = !request->was_admitted;
  if (options_.fair_share) {
    if (is_new && !waiting_.Waits(request->tenant)) {
      tenants_.Lift(request->tenant, waiting_.least_service());
    }
    waiting_.SetService(request->tenant, tenants_.service(request->tenant));
  }
  if (is_new) request->place = PlaceOf(*request, 0);
  request->lane = LaneOf(*request);
  if (manager_.prefix_caching()) {
    request->chain.Extend(request->tokens, layout().page_size);
  }
  waiting_.Insert(request);
  RefreshBar(request->tenant);
  // Who has run keeps its place whatever the cache has.
  if (is_new && options_.policy == SchedulingPolicy::kPrefix) {
    prefix_hints_.Reserve(waiting_.size());
    RefreshPlace(request);
  }
}

void SchedulerImpl::LeaveQueue(RequestState* request) {
  prefix_hints_.Remove(request);
  waiting_.Erase(request);
  RefreshBar(request->tenant);
  if (!waiting_.Waits(request->tenant)) tenants_.Leave(request->tenant);
}

void SchedulerImpl::RefreshPlaces() {
  if (options_.policy != SchedulingPolicy::kPrefix) return;
  const uint64_t dropped = manager_.stats().dropped_entries;
  for (int32_t left = kMaxRefreshedBlocks; left > 0;) {
    // What the first one counts on may be among what has been dropped; if so,
    // it makes room for another one to be first.
    RequestState* request = waiting_.front();
    if (request == nullptr || request->was_admitted ||
        request->hint.dropped == dropped) {
      request = prefix_hints_.PopStale();
      if (request == nullptr) return;
    }
    left -= kBlocksPerLook + RefreshPlace(request);
  }
}

int32_t SchedulerImpl::RefreshPlace(RequestState* request) {
  if (!manager_.prefix_caching()) return 0;
  prefix_hints_.Remove(request);
  match_ = FindPrefix(*request, request->eviction, std::move(match_));
  const int32_t page_size = layout().page_size;
  const int32_t num_pages = match_.num_tokens / page_size;
  request->hint.dropped = manager_.stats().dropped_entries;
  prefix_hints_.Add(
      request, num_pages,
      request->eviction.MaxCachedTokens(std::ssize(request->tokens), 0) /
          page_size);
  waiting_.Move(request, PlaceOf(*request, match_.num_tokens));
  RefreshBar(request->tenant);
  return num_pages;
}

int64_t SchedulerImpl::ServiceOf(const RequestState& request) const {
  if (!options_.fair_share || request.was_admitted) return 0;
  return tenants_.ServiceOf(request.tenant,
                            request.num_prompt * kPromptTokenService);
}

}  // namespace blockmgr
