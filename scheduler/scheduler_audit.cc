// Scheduler: the audit, and numbers by which tests compare two states.

#include <algorithm>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

class StateMixer {
 public:
  template <typename... Values>
  void Mix(Values... values) {
    ((hash_ = SplitMix64(hash_ ^ static_cast<uint64_t>(values))), ...);
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

// Scores and budgets from outside by their presence.
void MixPoint(const CompressionPoint& point, StateMixer* mixer) {
  mixer->Mix(point.length, point.cut, point.policy.scorer.kind,
             point.policy.budget.kind, point.target.tokens,
             point.target.ratio.numerator, point.target.ratio.denominator,
             point.target.window_keep_ratio.numerator,
             point.target.window_keep_ratio.denominator,
             point.scores != nullptr, point.budgets != nullptr,
             point.page_total, point.command, point.is_planned, point.is_shared,
             point.is_recorded, point.in_place);
}

void MixStep(const StepInFlight& step, StateMixer* mixer) {
  mixer->Mix(Index(step.id), step.runs.size(), step.orders.size());
  for (const StepInFlight::Run& run : step.runs) {
    mixer->Mix(Index(run.id), run.incarnation, run.num_tokens, run.num_drafts,
               run.samples);
  }
  for (const StepInFlight::Order& order : step.orders) {
    MixPoint(order.point, mixer);
    mixer->Mix(order.run, order.num_released, Index(order.region),
               order.groups.size());
    for (const int32_t group : order.groups) mixer->Mix(group);
  }
}

}  // namespace

void SchedulerImpl::CheckInvariants() const {
  state_.manager.CheckInvariants();
  BM_CHECK(static_cast<int32_t>(state_.running.size()) +
               state_.waiting.size() ==
           static_cast<int64_t>(state_.requests.size()));
  state_.waiting.CheckInvariants();
  state_.prefix_hints.CheckInvariants();
  state_.tenants.CheckInvariants();
  CheckReservations();
  BM_CHECK(std::ranges::is_sorted(
      state_.running, [this](const RequestState* a, const RequestState* b) {
        return state_.RunsBefore(*a, *b);
      }));
  state_.requests.CheckInvariants();
  BM_CHECK(std::ssize(state_.running) + state_.manager.num_open_slots() ==
           state_.options().max_num_seqs);
  BM_CHECK(
      state_.num_squeezable ==
      std::ranges::count_if(state_.running, [](const RequestState* request) {
        return request->eviction.squeeze != nullptr;
      }));
  BM_CHECK(state_.num_spared ==
           std::ranges::count_if(state_.running, &RequestState::is_spared));
  BM_CHECK(
      state_.num_speculating ==
      std::ranges::count_if(state_.running, [](const RequestState* request) {
        return request->num_drafts > 0;
      }));
  absl::flat_hash_set<const RequestState*> seen;
  for (const RequestState* request : state_.running) {
    BM_CHECK(seen.insert(request).second);
    BM_CHECK(request->running);
    BM_CHECK(request->swap == kNoSwap);
    const SequenceCache& sequence = state_.manager.sequence(request->slot);
    BM_CHECK(sequence.num_reserved == request->num_computed);
    // The block registered in PrefillFront is the next one to be published.
    BM_CHECK(!request->hint.computing.has_value() ||
             (sequence.num_published + 1) * state_.layout().page_size <=
                 request->num_prompt);
    BM_CHECK(sequence.num_settled <= std::ssize(request->tokens));
    BM_CHECK(request->num_computed <= request->num_tokens());
    BM_CHECK(request->num_computed <= request->last_length());
    BM_CHECK(request->num_unverified == 0 ||
             request->num_placeholders == 1 + request->num_unverified);
  }
  int32_t num_swapped = 0;
  for (const RequestState* request : state_.waiting.All()) {
    // Planning looks at waiting requests, and extends no chain.
    BM_CHECK(!state_.manager.prefix_caching() ||
             std::ssize(request->chain.keys()) ==
                 std::ssize(request->tokens) / state_.layout().page_size);
    if (request->swap != kNoSwap) {
      ++num_swapped;
      BM_CHECK(state_.manager.host().Contains(request->swap));
    }
    BM_CHECK(state_.waiting.IsBarred(request->tenant) ==
             state_.IsFull(request->tenant));
    BM_CHECK(seen.insert(request).second);
    BM_CHECK(!request->running);
    BM_CHECK(request->num_computed == 0);
    BM_CHECK(request->num_placeholders == 0);
    BM_CHECK(request->num_drafts == 0);
  }
  BM_CHECK(num_swapped == state_.manager.host().num_sequences());
  BM_CHECK(state_.num_steps_in_flight() <=
           state_.options().max_steps_in_flight);
}

void SchedulerImpl::CheckReservations() const {
  absl::flat_hash_map<TenantId, int64_t> reserved;
  state_.requests.ForEach([&reserved](const RequestState& request) {
    BM_CHECK(request.reserved_blocks >= 0);
    BM_CHECK(request.running || request.reserved_blocks == 0);
    reserved[request.tenant] += request.reserved_blocks;
  });
  for (const auto& [tenant, blocks] : reserved) {
    BM_CHECK(state_.tenants.reserved_blocks(tenant) == blocks);
  }
}

uint64_t SchedulerImpl::StateHash() const {
  StateMixer mixer;
  mixer.Mix(FutureHash(), state_.next_command);
  // Gauges follow from the rest of the state.
  VisitSchedulerStats(state_.totals, [&mixer](StatKind kind, absl::string_view,
                                              const auto& value, auto&&...) {
    if (kind == StatKind::kCounter) mixer.Mix(value);
  });
  const auto mix_past = [&mixer](const RequestState& request) {
    mixer.Mix(request.num_preemptions);
  };
  for (const RequestState* request : state_.running) mix_past(*request);
  for (const RequestState* request : state_.waiting.All()) mix_past(*request);
  return mixer.hash();
}

uint64_t SchedulerImpl::FutureHash() const {
  StateMixer mixer;
  mixer.Mix(state_.manager.StateHash(), RequestsHash(),
            state_.tenants.StateHash(), state_.in_flight.size(),
            state_.next_request, state_.next_step);
  for (const StepInFlight& step : state_.in_flight) MixStep(step, &mixer);
  for (const SequenceSlot slot : state_.released) mixer.Mix(Index(slot));
  mixer.Mix(state_.dropped_regions.size());
  for (const RegionId region : state_.dropped_regions) mixer.Mix(Index(region));
  mixer.Mix(state_.dropped_swaps.size());
  for (const SwapId swap : state_.dropped_swaps) mixer.Mix(Index(swap));
  return mixer.hash();
}

uint64_t SchedulerImpl::RequestsHash() const {
  StateMixer mixer;
  const auto mix_request = [&mixer](const RequestState& request) {
    mixer.Mix(Index(request.id), request.tokens.size(), request.num_computed,
              request.num_placeholders, request.num_drafts,
              request.num_unverified, request.next_compression,
              request.reserved_blocks);
    mixer.Mix(request.eviction.compressions.size());
    for (const CompressionPoint& point : request.eviction.compressions) {
      MixPoint(point, &mixer);
    }
    mixer.Mix(request.command != nullptr ? request.command->number : 0,
              request.restarts, request.eviction.squeeze != nullptr,
              Index(request.swap), request.times_passed, request.prefix_waits,
              Index(request.prefix_wait.id), request.place.rank);
  };
  for (const RequestState* request : state_.running) mix_request(*request);
  for (const RequestState* request : state_.waiting.All()) {
    mix_request(*request);
  }
  return mixer.hash();
}

}  // namespace blockmgr
