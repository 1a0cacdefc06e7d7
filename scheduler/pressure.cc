#include "scheduler/pressure.h"

#include <algorithm>

#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"
#include "scheduler/footprint.h"

namespace blockmgr {
namespace {

// A squeeze reads the whole sequence. So it must free at least this fraction of
// the sequence's blocks.
constexpr int32_t kLeastGain = 8;

}  // namespace

void PressurePlanner::Plan(const BlockBudget& budget) {
  if (state_.num_squeezable == 0) return;
  // Squeezed blocks are free only when this step is answered. Until then the
  // other requests take the blocks that are available.
  const int64_t room =
      int64_t{budget.available} + budget.coming + budget.squeezed;
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_steps = state_.options().max_steps_in_flight + 1;
  const int64_t most =
      state_.layout().num_groups() *
      (std::ssize(state_.running) * (CeilDiv(num_steps, page_size) + 1) +
       int64_t{num_steps} *
           CeilDiv(state_.options().max_num_batched_tokens, page_size));
  if (room >= most) return;
  int64_t lacking = CountBlocksSoon(state_) - room;
  if (lacking <= 0) return;
  // Sequences with the longest tails come first, because a squeeze of them
  // frees most.
  candidates_.clear();
  const auto tail_of = [&](int32_t index) {
    const RequestState& request = *state_.running[index];
    return LargestCut(request.num_tokens(), page_size) -
           state_.manager.sequence(request.slot).cut();
  };
  for (int32_t i = 0; i < std::ssize(state_.running); ++i) {
    const RequestState& request = *state_.running[i];
    if (request.eviction.squeeze == nullptr || request.order_in_flight ||
        request.command != nullptr ||
        request.num_computed < request.num_prompt ||
        request.num_computed >= request.num_tokens()) {
      continue;
    }
    if (tail_of(i) / page_size * kLeastGain >=
        state_.manager.CountBlocks(request.slot)) {
      candidates_.push_back(i);
    }
  }
  const auto is_shorter = [&](int32_t a, int32_t b) {
    const int32_t tail_a = tail_of(a);
    const int32_t tail_b = tail_of(b);
    return tail_a != tail_b ? tail_a < tail_b : a < b;
  };
  std::ranges::make_heap(candidates_, is_shorter);
  while (lacking > 0 && !candidates_.empty()) {
    std::ranges::pop_heap(candidates_, is_shorter);
    int32_t released = 0;
    if (TrySqueeze(*state_.running[candidates_.back()], &released)) {
      lacking -= released;
    }
    candidates_.pop_back();
  }
}

int64_t CountBlocksSoon(const SchedulerState& state) {
  const int32_t num_steps = state.options().max_steps_in_flight + 1;
  int64_t tokens = int64_t{num_steps} * state.options().max_num_batched_tokens;
  int64_t blocks = 0;
  for (const RequestState* request : state.running) {
    const int32_t end =
        std::min(request->num_tokens() + num_steps - 1, request->last_length());
    const auto num_tokens = static_cast<int32_t>(
        std::min<int64_t>(end - request->num_computed, tokens));
    if (num_tokens <= 0) continue;
    tokens -= num_tokens;
    const SequenceCache& sequence = state.manager.sequence(request->slot);
    if (state.layout().kind_of(0) == GroupKind::kFull) {
      blocks += sequence.CountBlocksFor(num_tokens, state.layout().page_size);
    }
    if (state.layout().has_windows()) {
      blocks += WindowGrowth(sequence.num_reserved, num_tokens,
                             MaxChunk(state.options(), *request, num_tokens),
                             state.layout());
    }
  }
  return blocks;
}

bool PressurePlanner::TrySqueeze(const RequestState& request,
                                 int32_t* released) {
  decision_.squeezed.push_back(&request);
  StepDecision::Order order;
  const bool worth_it =
      orders_.Plan(request, request.num_tokens(), nullptr, &order) &&
      !order.is_futile() &&
      order.num_released() * kLeastGain >=
          state_.manager.CountBlocks(request.slot) &&
      // Blocks are short. So the squeeze takes no fresh block, even if the
      // sequence shares its blocks.
      orders_.CountFresh(order, 0) == 0;
  if (!worth_it) decision_.squeezed.pop_back();
  *released = order.num_released();
  return worth_it;
}

}  // namespace blockmgr
