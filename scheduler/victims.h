// Victims: decides which running requests are preempted, and when a request
// waits instead for blocks that will soon be available.
//
// Reads the state, and writes preemptions into the decision. Thread-compatible.
#ifndef SCHEDULER_VICTIMS_H_
#define SCHEDULER_VICTIMS_H_

#include <cstddef>
#include <cstdint>

#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

class Victims {
 public:
  // Borrows both arguments, which must outlive this object.
  Victims(const SchedulerState& state, StepDecision* decision)
      : state_(state), decision_(*decision) {}

  // Preempts until `needed` blocks are available for the index-th running
  // request. Returns false if this request does not run in this step. Then it
  // is preempted itself, or it waits for blocks that are on their way, and the
  // available blocks are kept for it.
  bool MakeRoom(size_t index, int32_t needed, BlockBudget* budget);
  // Returns whether another running request shares the first blocks of this
  // request and is being compressed, so that it leaves these blocks.
  bool IsLeftBySharer(const RequestState& request) const;

 private:
  // Returns the index of the request to preempt for the index-th running
  // request: a later one, or `index` if there is none.
  size_t FindVictim(size_t index);
  size_t CheapestVictim(size_t index) const;
  // Returns the tokens that the request would have to compute again.
  int32_t RecomputeCost(const RequestState& request) const;
  // Returns the blocks that will or may become available when the steps in
  // flight and the step being planned are answered. O(running).
  int32_t CountBlocksOnTheWay(const BlockBudget& budget) const;
  // Returns the blocks that are shared only by sequences which are all being
  // evicted from. They become free when all of these evictions are committed.
  int32_t CountLeftTogether() const;
  // Returns the cut of the eviction that the request has in flight, or that
  // the decision orders. Returns 0 if there is none.
  int32_t CutToCome(const RequestState& request) const;

  const SchedulerState& state_;
  StepDecision& decision_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_VICTIMS_H_
