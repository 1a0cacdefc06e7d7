// SchedulerState: all that the scheduler knows between two calls.
//
// A step is planned from a const SchedulerState (step_planner.h). Through it no
// request, queue or sequence can be changed: the collections below give const
// requests when they are const. Four classes change it: SchedulerImpl takes
// what frontends ask for, StepApplier carries out a decision, AnswerSettler
// settles the engine's answer, and RequestLifecycle moves requests between
// queue, slots and end for all three.
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

// The live requests, by number and by the frontend's id. Owns their objects,
// and keeps those of requests that have ended for others.
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
  // Returns the same request, for a caller that may change it.
  RequestState* Own(const RequestState* request) {
    return objects_[request->index].get();
  }

  bool empty() const { return by_id_.empty(); }
  size_t size() const { return by_id_.size(); }
  // RequestState::index is below this.
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
  std::vector<std::unique_ptr<RequestState>> objects_;  // all ever made
  std::vector<RequestState*> free_;
  absl::flat_hash_map<RequestId, RequestState*> by_id_;
  absl::flat_hash_map<std::string, RequestId> names_;
};

// The requests that run, in the order in which a step serves them.
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

struct SchedulerState {
  SchedulerState(const ModelLayout& layout, const SchedulerOptions& options);
  SchedulerState(const SchedulerState&) = delete;
  SchedulerState& operator=(const SchedulerState&) = delete;

  const ModelLayout& layout() const { return manager.layout(); }
  int32_t num_steps_in_flight() const {
    return static_cast<int32_t>(in_flight.size());
  }
  // Returns whether a step serves `a` before `b`, if both run.
  bool RunsBefore(const RequestState& a, const RequestState& b) const;
  // Returns what the request lacks as long as many others have it: the bits of
  // its lane.
  uint8_t LaneOf(const RequestState& request) const;
  // Returns whether the prompt is one of those of which few are computed at a
  // time (max_long_prefills).
  bool IsLong(const RequestState& request) const;
  // Returns whether the tenant's first waiting request would exceed its quota.
  bool IsFull(TenantId tenant) const;
  // Returns what the request adds to its tenant's service when it is admitted.
  int64_t ServiceOf(const RequestState& request) const;

  const SchedulerOptions options;
  const int32_t watermark_blocks;  // that admission leaves
  BlockManager manager;

  RequestTable requests;
  RunningRequests running;
  WaitingQueue waiting;
  Tenants tenants;
  PrefixHints prefix_hints;               // of waiting requests; for kPrefix
  PrefillFront prefill_front;             // of running requests
  std::vector<StepInFlight> in_flight;    // oldest first, at most 4
  std::vector<StepInFlight> spare_steps;  // memory for records to come

  // Counts of running requests.
  int32_t num_squeezable = 0;   // with a squeeze
  int32_t num_spared = 0;       // see RequestState::is_spared
  int32_t num_speculating = 0;  // with drafts
  bool has_restarts = false;    // perhaps one of the running requests restarts

  // What the next plan tells the engine.
  std::vector<SequenceSlot> released;
  std::vector<RegionId> dropped_regions;  // that the engine keeps in vain
  std::vector<SwapId> dropped_swaps;

  int64_t now_ms = std::numeric_limits<int64_t>::min();  // not known yet
  uint64_t next_request = 1;
  uint64_t next_step = 1;
  uint64_t next_command = 1;
  SchedulerStats totals;  // the counters; stats() fills in the gauges
  KeptHistogram kept;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_STATE_H_
