// StepApplier: preempted requests whose KV waits in the host tier.

#include "blockmgr/base/check.h"
#include "scheduler/step_applier.h"

namespace blockmgr {

void StepApplier::WriteSwapOut(RequestState* request, StepPlan* plan) {
  const SequenceCache& sequence = state_.manager.sequence(request->slot);
  // A sequence is not swapped out if the engine may be moving its entries,
  // accumulates scores for it, or has not been told of its restart.
  if (state_.manager.host().num_blocks() == 0 || sequence.num_settled == 0 ||
      request->order_in_flight || request->restarts ||
      request->eviction.scorer_state != ScorerState::kNone) {
    return;
  }
  BM_CHECK(request->swap == kNoSwap);
  BM_CHECK(sequence.num_settled >=
           request->eviction.LengthOf(request->next_compression));
  SwapOut out = {.slot = request->slot,
                 .num_tokens = sequence.num_settled,
                 .transfer_begin = std::ssize(plan->transfers_out)};
  out.swap = swap_out_(request->slot, &plan->transfers_out);
  if (out.swap == kNoSwap) return;
  out.num_transfers = static_cast<int32_t>(std::ssize(plan->transfers_out) -
                                           out.transfer_begin);
  plan->swap_outs.push_back(out);
  request->swap = out.swap;
  request->num_swapped_compressions = request->next_compression;
  ++state_.totals.num_swap_outs;
}

void StepApplier::ApplySwapIns(size_t first_start, StepPlan* plan) {
  if (decision_->matches.empty()) return;
  for (const StepDecision::Run& run : decision_->runs) {
    if (run.match < 0) continue;
    const PrefixMatch& match = decision_->matches[run.match];
    if (match.swap == kNoSwap) continue;
    SequenceStart& start = plan->starts[first_start + run.match];
    start.swap = match.swap;
    start.transfer_begin = std::ssize(plan->transfers_in);
    state_.manager.SwapIn(run.request->slot, match, &plan->transfers_in);
    start.num_transfers = static_cast<int32_t>(std::ssize(plan->transfers_in) -
                                               start.transfer_begin);
    RequestState* request = state_.requests.Own(run.request);
    request->swap = kNoSwap;
    lifecycle_.UpdateFront(request);
    ++state_.totals.num_swap_ins;
    state_.totals.num_swapped_in_tokens +=
        static_cast<uint64_t>(match.num_tokens);
  }
}

}  // namespace blockmgr
