// PressurePlanner: decides which running requests are squeezed
// (EvictionMode::kPressure), to avoid preemptions.
//
// Reads the state, and writes StepDecision::squeezed. Thread-compatible.
#ifndef SCHEDULER_PRESSURE_H_
#define SCHEDULER_PRESSURE_H_

#include <cstdint>
#include <vector>

#include "scheduler/order_planner.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Returns the blocks that the running requests take in the next
// max_steps_in_flight + 1 steps: the steps that may be issued before a step
// issued now is answered, and one more.
int64_t CountBlocksSoon(const SchedulerState& state);

class PressurePlanner {
 public:
  // All are borrowed and must outlive this.
  PressurePlanner(const SchedulerState& state, const OrderPlanner& orders,
                  StepDecision* decision)
      : state_(state), orders_(orders), decision_(*decision) {}

  // Chooses requests to squeeze if the blocks that the running requests soon
  // need will not be available otherwise.
  void Plan(const BlockBudget& budget);

 private:
  // Returns whether squeezing the request with its next step is worth it. Then
  // the request is squeezed, and `released` is how many blocks that gives back.
  bool TrySqueeze(const RequestState& request, int32_t* released);

  const SchedulerState& state_;
  const OrderPlanner& orders_;
  StepDecision& decision_;
  std::vector<int32_t> candidates_;  // scratch of Plan, indices into running
};

}  // namespace blockmgr

#endif  // SCHEDULER_PRESSURE_H_
