// PrefixWaits: decides when a waiting request lets another request compute
// their common prefix, to find it in the prefix cache afterwards.
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
  // Borrows both arguments, which must outlive this object.
  PrefixWaits(const SchedulerState& state, const StepDecision& decision)
      : state_(state), decision_(decision) {}

  // Returns the request that is about to compute tokens which `request` lacks,
  // if waiting for it pays. `match` is what `request` would start with now.
  PrefixWait Find(const RequestState& request, const PrefixMatch& match) const;
  // Returns whether the wait that an earlier step found
  // (RequestState::prefix_wait) still holds. O(1), or O(compressions).
  bool StillWaits(const RequestState& request) const;

 private:
  bool MayWait(const RequestState& request) const;
  const RequestState* WhoComputes(const RequestState& request,
                                  const PrefixMatch& match) const;
  // Returns the running or admitted request that is about to make the longest
  // region which `request` can start with. At the same length, `request` would
  // itself make a region. O(running + compressions).
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
