// Preempted requests whose KV waits in the host tier.

#include <algorithm>

#include "blockmgr/base/check.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Tokens computed at the last of its first num_done compressions; 0: none.
int32_t LengthAfter(const RequestState& request, int32_t num_done) {
  return num_done == 0 ? 0 : request.eviction.compressions[num_done - 1].length;
}

}  // namespace

void SchedulerImpl::WriteSwapOut(RequestState* request, StepPlan* plan) {
  const SequenceCache& sequence = manager_.sequence(request->slot);
  // Where an order stands is the engine's to know, and so are scores that it
  // accumulates; of a restart it has not heard yet.
  if (manager_.host().num_blocks() == 0 || sequence.num_settled == 0 ||
      request->order_in_flight || request->restarts ||
      request->eviction.scorer_state != ScorerState::kNone) {
    return;
  }
  BM_CHECK(request->swap == kNoSwap);
  BM_CHECK(sequence.num_settled >=
           LengthAfter(*request, request->next_compression));
  SwapOut out = {.slot = request->slot,
                 .num_tokens = sequence.num_settled,
                 .transfer_begin = std::ssize(plan->transfers_out)};
  out.swap = TakeHostBlocks(request->slot, &plan->transfers_out);
  if (out.swap == kNoSwap) return;
  out.num_transfers = static_cast<int32_t>(std::ssize(plan->transfers_out) -
                                           out.transfer_begin);
  plan->swap_outs.push_back(out);
  request->swap = out.swap;
  request->num_swapped_compressions = request->next_compression;
  ++totals_.num_swap_outs;
}

void SchedulerImpl::MatchSwapped(const RequestState& request,
                                 PrefixMatch* match) const {
  const SwappedSequence& swapped = manager_.host().at(request.swap);
  const int32_t length = LengthAfter(request, request.num_swapped_compressions);
  // As with a prefix hit: observation windows are computed as a whole. What
  // came before a compression cannot be computed after it.
  const int32_t num_tokens = std::min(
      swapped.num_tokens, decision_.EvictionOf(request).MaxCachedTokens(
                              std::ssize(request.tokens), length));
  if (num_tokens < std::max({length, swapped.cut(), 1})) return;
  manager_.MatchSwapped(request.swap, num_tokens, length, match);
}

void SchedulerImpl::ApplySwapIns(size_t first_start, StepPlan* plan) {
  if (decision_.matches.empty()) return;
  for (const StepDecision::Run& run : decision_.runs) {
    if (run.match < 0) continue;
    const PrefixMatch& match = decision_.matches[run.match];
    if (match.swap == kNoSwap) continue;
    SequenceStart& start = plan->starts[first_start + run.match];
    start.swap = match.swap;
    start.transfer_begin = std::ssize(plan->transfers_in);
    manager_.SwapIn(run.request->slot, match, &plan->transfers_in);
    start.num_transfers = static_cast<int32_t>(std::ssize(plan->transfers_in) -
                                               start.transfer_begin);
    run.request->swap = kNoSwap;
    UpdateFront(run.request);
    ++totals_.num_swap_ins;
    totals_.num_swapped_in_tokens += static_cast<uint64_t>(match.num_tokens);
  }
}

void SchedulerImpl::DropSwap(RequestState* request) {
  if (request->swap == kNoSwap) return;
  manager_.DropSwapped(request->swap);
  dropped_swaps_.push_back(request->swap);
  request->swap = kNoSwap;
}

}  // namespace blockmgr
