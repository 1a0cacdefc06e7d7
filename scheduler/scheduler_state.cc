#include "scheduler/scheduler_state.h"

#include "blockmgr/base/check.h"

namespace blockmgr {

RequestState* RequestTable::Add(RequestId id, const std::string& name) {
  if (free_.empty()) {
    objects_.push_back(std::make_unique<RequestState>());
    objects_.back()->index = objects_.size() - 1;
    free_.push_back(objects_.back().get());
  }
  RequestState* request = free_.back();
  free_.pop_back();
  request->id = id;
  BM_CHECK(by_id_.emplace(id, request).second);
  BM_CHECK(names_.emplace(name, id).second);
  return request;
}

void RequestTable::Remove(RequestState* request) {
  names_.erase(request->info->id);
  by_id_.erase(request->id);
  // Steps in flight may still point to the object.
  const uint32_t incarnation = request->incarnation;
  const size_t index = request->index;
  *request = RequestState{};
  request->incarnation = incarnation;
  request->index = index;
  free_.push_back(request);
}

RequestState* RequestTable::Find(RequestId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

const RequestState* RequestTable::Find(RequestId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

const RequestState* RequestTable::FindName(absl::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : Find(found->second);
}

void RequestTable::CheckInvariants() const {
  BM_CHECK(names_.size() == by_id_.size());
  BM_CHECK(objects_.size() == by_id_.size() + free_.size());
}

SchedulerState::SchedulerState(const ModelLayout& layout,
                               const SchedulerOptions& given)
    : options_(given),
      watermark_blocks(static_cast<int32_t>(
          given.watermark * static_cast<double>(layout.num_blocks - 1))),
      manager(layout, given.max_num_seqs, given.enable_prefix_caching,
              given.engine.num_host_blocks),
      tenants(options_) {
  in_flight.reserve(given.max_steps_in_flight);
  spare_steps.reserve(given.max_steps_in_flight + 1);
  running.all().reserve(given.max_num_seqs);
}

void SchedulerState::TakeAbilities(const EngineAbilities& abilities) {
  const EngineAbilities& present = options_.engine;
  BM_CHECK(abilities.num_scorer_states == present.num_scorer_states);
  BM_CHECK(abilities.num_host_blocks == present.num_host_blocks);
  options_.engine = abilities;
}

bool SchedulerState::RunsBefore(const RequestState& a,
                                const RequestState& b) const {
  if (options_.policy == SchedulingPolicy::kPriority &&
      a.priority != b.priority) {
    return a.priority < b.priority;
  }
  return a.id < b.id;
}

uint8_t SchedulerState::LaneOf(const RequestState& request) const {
  uint8_t lane = 0;
  // A fork has nearly all of its prompt from its parent while the parent lives.
  // A request that comes back from the host tier has all of its prompt.
  const bool is_at_hand =
      request.swap != kNoSwap || requests.Find(request.fork_of) != nullptr;
  if (IsLong(request) && !is_at_hand) lane |= kLongPromptLane;
  if (request.eviction.scorer_state != ScorerState::kNone) {
    lane |= kScorerStateLane;
  }
  return lane;
}

bool SchedulerState::IsLong(const RequestState& request) const {
  return options_.max_long_prefills > 0 &&
         std::ssize(request.tokens) > options_.long_prefill_token_threshold;
}

bool SchedulerState::IsFull(TenantId tenant) const {
  const RequestState* first = waiting.first(tenant);
  return first != nullptr && !tenants.MayReserve(tenant, first->peak_blocks);
}

int64_t SchedulerState::ServiceOf(const RequestState& request) const {
  if (!options_.fair_share || request.was_admitted) return 0;
  return tenants.ServiceOf(request.tenant,
                           request.num_prompt * kPromptTokenService);
}

}  // namespace blockmgr
