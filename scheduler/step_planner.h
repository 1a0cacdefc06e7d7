// StepPlanner: decides what the next step does.
//
// Planning reads the state, through a const reference, and returns plain data:
// who is preempted, who runs how many tokens, who is admitted on which prefix,
// which evictions are ordered. Applying the decision cannot fail, because
// planning has counted the blocks. The parts of planning are classes of their
// own:
//
//   OrderPlanner      evictions that the step orders
//   PressurePlanner   evictions because blocks are short
//   Victims           preemptions
//   PlanDrafts        speculative decoding
//   Admission         waiting requests
//
// Running requests come first, in their order. Waiting requests are admitted
// only if no request was preempted. From call to call the planner keeps nothing
// but allocated memory, so the same state gives the same decision.
// Thread-compatible.
#ifndef SCHEDULER_STEP_PLANNER_H_
#define SCHEDULER_STEP_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/admission.h"
#include "scheduler/order_planner.h"
#include "scheduler/prefix_finder.h"
#include "scheduler/pressure.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"
#include "scheduler/victims.h"
#include "scheduler/waiting_queue.h"

namespace blockmgr {

class StepPlanner {
 public:
  // Borrows both arguments, which must outlive this object.
  StepPlanner(const SchedulerState& state, PrefixFinder* finder)
      : state_(state),
        orders_(state, decision_),
        pressure_(state, orders_, &decision_),
        victims_(state, &decision_),
        admission_(state, orders_, finder, &decision_),
        walk_(state.waiting) {}
  StepPlanner(const StepPlanner&) = delete;
  StepPlanner& operator=(const StepPlanner&) = delete;

  // Returns what the next step does. Returns null if there is no request, if
  // max_steps_in_flight steps are unanswered, or if all requests wait for the
  // answer of a step in flight. StepApplier decides whether a preempted request
  // is swapped out or computed again. The decision is the planner's, for the
  // caller to carry out before the next call.
  StepDecision* Plan();

 private:
  // Finds the equal shares of ChunkPolicy::kEqualProgress.
  void PlanShares(int32_t token_budget);
  void PlanRunning(BlockBudget* budget, int32_t* token_budget);
  // Plans a run of the index-th running request. Returns false if it does not
  // run in this step.
  bool PlanRun(size_t index, int32_t num_tokens, BlockBudget* budget);
  bool PlanRunWithOrder(size_t index, StepDecision::Run* run,
                        BlockBudget* budget);
  int32_t CountTokensToRun(const RequestState& running,
                           int32_t token_budget) const;
  // Lets the orders of running requests copy, where that is preferred and the
  // running requests have left room.
  void PlanCopies(BlockBudget* budget);
  BlockBudget BlocksNow() const;
  // Hands out the tokens that equal shares have left.
  void TopUp(BlockBudget* budget, int32_t* token_budget);

  const SchedulerState& state_;
  StepDecision decision_;
  OrderPlanner orders_;
  PressurePlanner pressure_;
  Victims victims_;
  Admission admission_;
  WaitingQueue::Walk walk_;    // scratch of PlanShares
  std::vector<int32_t> gaps_;  // scratch of PlanShares
};

}  // namespace blockmgr

#endif  // SCHEDULER_STEP_PLANNER_H_
