// SchedulerState: everything that the scheduler knows between two calls.
//
// StepPlanner plans a step from a const SchedulerState. A const collection
// gives const requests only, so planning cannot change a request, a queue or a
// sequence. Four classes change the state:
//
//   SchedulerImpl      takes the calls of frontends
//   StepApplier        carries out a decision
//   AnswerSettler      settles the engine's answer
//   RequestLifecycle   moves requests between queue, slots and end, for the
//                      other three
//
// Threads: core thread.
#ifndef SCHEDULER_SCHEDULER_STATE_H_
#define SCHEDULER_SCHEDULER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/string_view.h>

#include "blockmgr/block_manager.h"
#include "scheduler/kept_histogram.h"
#include "scheduler/prefill_front.h"
#include "scheduler/prefix_hints.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_decision.h"
#include "scheduler/tenants.h"
#include "scheduler/waiting_queue.h"

namespace blockmgr {

// RequestTable finds live requests by number and by the frontend's id. It owns
// the RequestState objects, and reuses an object when its request has ended.
class RequestTable {
 public:
  // Adds a live request. REQUIRES: number and name are not in use.
  RequestState* Add(RequestId id, const std::string& name);
  // Forgets a live request and resets its object.
  void Remove(RequestState* request);

  // Return null if no live request has this number, or this name.
  RequestState* Find(RequestId id);
  const RequestState* Find(RequestId id) const;
  const RequestState* FindName(absl::string_view name) const;
  // Returns the request, not const, to a caller that may change the state. Does
  // not read the request. REQUIRES: the table has made it.
  RequestState* Own(const RequestState* request) {
    return const_cast<RequestState*>(request);
  }

  bool empty() const { return by_id_.empty(); }
  size_t size() const { return by_id_.size(); }
  // Returns the number of objects. Every RequestState::index is below it.
  size_t num_objects() const { return objects_.size(); }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const auto& [id, request] : by_id_) visit(request);
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [id, request] : by_id_) {
      visit(static_cast<const RequestState&>(*request));
    }
  }
  void CheckInvariants() const;

 private:
  // Indexed by RequestState::index.
  std::vector<std::unique_ptr<RequestState>> objects_;
  std::vector<RequestState*> free_;
  absl::flat_hash_map<RequestId, RequestState*> by_id_;
  absl::flat_hash_map<std::string, RequestId> names_;
};

// RunningRequests lists the running requests in the order in which a step
// serves them.
class RunningRequests {
 public:
  bool empty() const { return requests_.empty(); }
  size_t size() const { return requests_.size(); }
  const RequestState* operator[](size_t index) const {
    return requests_[index];
  }
  const RequestState* const* begin() const { return requests_.data(); }
  const RequestState* const* end() const { return begin() + size(); }
  std::vector<RequestState*>& all() { return requests_; }

 private:
  std::vector<RequestState*> requests_;
};

class SchedulerState {
 public:
  SchedulerState(const ModelLayout& layout, const SchedulerOptions& options);
  SchedulerState(const SchedulerState&) = delete;
  SchedulerState& operator=(const SchedulerState&) = delete;

  // Constant, but for what TakeAbilities sets.
  const SchedulerOptions& options() const { return options_; }
  // See Scheduler::TakeAbilities.
  void TakeAbilities(const EngineAbilities& abilities);

  const ModelLayout& layout() const { return manager.layout(); }
  int32_t num_steps_in_flight() const {
    return static_cast<int32_t>(in_flight.size());
  }
  // Returns whether a step serves `a` before `b` if both run.
  bool RunsBefore(const RequestState& a, const RequestState& b) const;
  // Returns the bits of the lane in which the request waits (kLongPromptLane,
  // kScorerStateLane).
  uint8_t LaneOf(const RequestState& request) const;
  // Returns whether the prompt counts as long. At most max_long_prefills long
  // prompts are computed at a time.
  bool IsLong(const RequestState& request) const;
  // Returns whether the tenant's first waiting request would exceed its quota.
  bool IsFull(TenantId tenant) const;
  // Returns how much the admission of the request adds to its tenant's service
  // (Tenants).
  int64_t ServiceOf(const RequestState& request) const;

 private:
  SchedulerOptions options_;

 public:
  const int32_t watermark_blocks;  // free blocks that admission must leave
  BlockManager manager;

  RequestTable requests;
  RunningRequests running;
  WaitingQueue waiting;
  Tenants tenants;
  PrefixHints prefix_hints;    // hints of waiting requests, for kPrefix
  PrefillFront prefill_front;  // next blocks of running prefills
  std::vector<StepInFlight> in_flight;    // oldest first, at most 4
  std::vector<StepInFlight> spare_steps;  // answered steps, kept for reuse

  // Counts of running requests.
  int32_t num_squeezable = 0;   // requests that may be squeezed
  int32_t num_spared = 0;       // requests that are spared
  int32_t num_speculating = 0;  // requests that have drafts
  bool has_restarts = false;    // false if no running request restarts

  // The next plan tells the engine to release these slots and to drop these
  // regions and swaps. The lists are empty after that plan is written.
  std::vector<SequenceSlot> released;
  std::vector<RegionId> dropped_regions;  // the engine keeps them in vain
  std::vector<SwapId> dropped_swaps;

  // The time of the last SetTime. The minimum before the first call.
  int64_t now_ms = std::numeric_limits<int64_t>::min();
  uint64_t next_request = 1;
  uint64_t next_step = 1;
  uint64_t next_command = 1;
  SchedulerStats totals;  // counters only, stats() fills in the gauges
  KeptHistogram kept;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_STATE_H_
