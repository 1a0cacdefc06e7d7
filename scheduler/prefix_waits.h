// PrefixWaits: when a waiting request had better let another one compute the
// prefix that both have, and then find it in the cache.
//
// Reads the state and the decision so far; changes nothing. Thread-compatible.
#ifndef SCHEDULER_PREFIX_WAITS_H_
#define SCHEDULER_PREFIX_WAITS_H_

#include <cstdint>

#include "blockmgr/prefix_match.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

class PrefixWaits {
 public:
  // Both are borrowed and must outlive this.
  PrefixWaits(const SchedulerState& state, const StepDecision& decision)
      : state_(state), decision_(decision) {}

  // Returns for whom the request had better wait, as that is about to compute
  // what the request lacks. `match` is what the request would start with now.
  PrefixWait Find(const RequestState& request, const PrefixMatch& match) const;
  // Returns whether what an earlier look found (RequestState::prefix_wait) goes
  // on. O(1), or O(compressions).
  bool StillWaits(const RequestState& request) const;

 private:
  bool MayWait(const RequestState& request) const;
  const RequestState* WhoComputes(const RequestState& request,
                                  const PrefixMatch& match) const;
  // Returns who is about to make the longest region that the request would make
  // at the same length itself. O(running + compressions).
  PrefixWait FindRegionToCome(const RequestState& request) const;
  // Returns the length of the longest region that `other` will make from its
  // compression `next` on. Returns 0 if it makes none.
  int32_t RegionToCome(const RequestState& request, const RequestState& other,
                       int32_t next) const;
  // Returns the first compression whose region is still to come.
  int32_t NextToCome(const RequestState& running) const;

  const SchedulerState& state_;
  const StepDecision& decision_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_PREFIX_WAITS_H_
