// Admission: decides which waiting requests a step starts, and on which prefix.
//
// A request is admitted if the pool has room for the blocks that
// AdmissionPolicy promises to it and to all running requests. Requests that are
// examined but not admitted are recorded in the decision. Reads the state, and
// writes the decision and its budgets. Thread-compatible.
#ifndef SCHEDULER_ADMISSION_H_
#define SCHEDULER_ADMISSION_H_

#include <cstdint>

#include "blockmgr/prefix_match.h"
#include "scheduler/block_promises.h"
#include "scheduler/order_planner.h"
#include "scheduler/prefix_finder.h"
#include "scheduler/prefix_waits.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"
#include "scheduler/waiting_queue.h"

namespace blockmgr {

class Admission {
 public:
  // All are borrowed and must outlive this.
  Admission(const SchedulerState& state, const OrderPlanner& orders,
            PrefixFinder* finder, StepDecision* decision)
      : state_(state),
        orders_(orders),
        finder_(*finder),
        decision_(*decision),
        promises_(state, decision),
        waits_(state, *decision),
        walk_(state.waiting) {}

  // Admits waiting requests out of what the running ones have left.
  void Plan(BlockBudget* budget, int32_t* token_budget);

 private:
  enum class Verdict : uint8_t {
    kAdmitted,
    kDoesNotFit,      // later requests may pass it, max_bypasses times
    kLetsOthersPass,  // in this step, another request computes its prefix
    kAwaits,          // it still waits for such a prefix, or for its parent
    kIsTooLong,       // max_long_prefills long prompts are being computed
    kLacksScorerState,
    kTenantIsFull,
  };
  Verdict TryAdmit(const RequestState* request, BlockBudget* budget,
                   int32_t* token_budget);
  // Tries to admit the request on `match`, which is taken then. Returns false,
  // with nothing decided, if blocks are short.
  bool PlanAdmission(const RequestState* request, PrefixMatch* match,
                     BlockBudget* budget, int32_t* token_budget);
  bool IsAffordable(const RequestState& request, const PrefixMatch& match,
                    const BlockBudget& budget);
  // Returns how many waiting requests were examined to find out that `request`
  // must wait for its lane (for example the lane of long prompts). Returns 0 if
  // it already stands in that lane: the walk then skips the requests behind it.
  int32_t LookOutsideLane(const RequestState* request, uint8_t lane);
  // Returns whether the engine can accumulate scores for this sequence beside
  // those that run or are admitted by this step.
  bool HasScorerState(const RequestState& request) const;
  // Returns whether the prompt may be computed now: it is not long, or few long
  // ones are computed.
  bool MayPrefill(const RequestState& request);

  const SchedulerState& state_;
  const OrderPlanner& orders_;
  PrefixFinder& finder_;
  StepDecision& decision_;
  BlockPromises promises_;
  PrefixWaits waits_;
  WaitingQueue::Walk walk_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_ADMISSION_H_
