// StepApplier: carries out a decision and writes the plan for the engine.
//
// Applying cannot fail, because planning has counted the blocks of the pool.
// Host blocks are not counted: a preempted request that finds too few of them
// is computed again. StepApplier is one of the four classes that change the
// SchedulerState.
#ifndef SCHEDULER_STEP_APPLIER_H_
#define SCHEDULER_STEP_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "blockmgr/prefix_match.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request_lifecycle.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

class StepApplier {
 public:
  // Calls BlockManager::SwapOut. Tests replace it to make it fail.
  using SwapOutCall =
      std::function<SwapId(SequenceSlot, std::vector<BlockTransfer>*)>;

  // `state` and `lifecycle` are borrowed and must outlive this.
  StepApplier(SchedulerState* state, RequestLifecycle* lifecycle,
              SwapOutCall swap_out)
      : state_(*state),
        lifecycle_(*lifecycle),
        swap_out_(std::move(swap_out)) {}

  // Fills `plan` with what the decision says, and adds a step in flight.
  // `decision` must come from StepPlanner::Plan for the present state. Apply
  // uses the decision up.
  void Apply(StepDecision* decision, StepPlan* plan);

 private:
  void ApplyInherited();
  void ApplyPreemptions(StepPlan* plan);
  // Records in the requests which were passed, which wait for a prefix, and
  // which have changed their lane.
  void ApplyWaits();
  // Writes starts for the requests that begin anew in their slots after a loss,
  // even if they do not run in this step.
  void ApplyRestarts(StepPlan* plan);
  void Admit(RequestState* request, const PrefixMatch& match);
  // Puts the compressions of a found prefix into the request's plan.
  void AdoptCompressions(RequestState* request, const PrefixMatch& match);
  // Copies the settled KV of a preempted request to the host tier, if the
  // request can be swapped out and the tier has room.
  void WriteSwapOut(RequestState* request, StepPlan* plan);
  // Copies back what the admitted requests have in the host tier. Their starts
  // begin at first_start.
  void ApplySwapIns(size_t first_start, StepPlan* plan);
  // Writes a SequenceStart, and remembers how many queries it tells the engine
  // to keep. `source` is the sequence that has computed the first tokens, or
  // kNoSequenceSlot if they come from the prefix cache.
  void WriteStart(RequestState* request, SequenceSlot source, StepPlan* plan);
  // Writes what the run adds to the tables. `blocks` are new.
  void WriteBlocks(const StepDecision::Run& run,
                   std::span<const BlockId> blocks, StepPlan* plan) const;
  void WriteRun(const StepDecision::Run& run, std::span<const BlockId> blocks,
                StepPlan* plan, StepInFlight* record);
  void WriteOrder(const StepDecision::Run& run, StepPlan* plan,
                  StepInFlight* record);
  // Returns the order for one group, without destinations.
  EvictionOrder OrderOf(const RequestState& request,
                        const CompressionPoint& point,
                        const StepDecision::GroupOrder& group) const;
  // Takes the destination blocks of `order`, num_fresh of them fresh, and adds
  // them to the plan.
  void TakeDestinations(int32_t num_fresh, EvictionOrder* order,
                        StepPlan* plan);

  SchedulerState& state_;
  RequestLifecycle& lifecycle_;
  const SwapOutCall swap_out_;
  StepDecision* decision_ = nullptr;  // set while Apply runs
  std::vector<TokenDemand> demands_;  // scratch of Apply
  std::vector<int64_t> new_offsets_;
  std::vector<BlockId> new_blocks_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_STEP_APPLIER_H_
