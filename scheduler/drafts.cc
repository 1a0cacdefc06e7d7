#include "scheduler/drafts.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "scheduler/pressure.h"

namespace blockmgr {
namespace {

// Returns the available blocks that no running request takes until the step is
// over.
int32_t CountSpareBlocks(const SchedulerState& state,
                         const StepDecision& decision,
                         const BlockBudget& budget) {
  int64_t needed = CountBlocksSoon(state);
  for (const StepDecision::Run& run : decision.runs) needed -= run.num_blocks;
  return static_cast<int32_t>(std::clamp<int64_t>(
      budget.available - std::max<int64_t>(needed, 0), 0, INT32_MAX));
}

}  // namespace

bool AwaitsDrafts(const SchedulerState& state) {
  // Drafts follow the last token, and only the answer tells which drafts are
  // accepted. A step issued ahead would have to leave out the sequences with
  // drafts. Two groups of sequences would then take turns for ever, each in
  // smaller batches. The time to the engine and back is shorter than the time
  // lost in this way.
  return state.num_speculating > 0 &&
         std::ranges::any_of(state.running, [](const RequestState* request) {
           return request->num_drafts > 0 && request->num_placeholders > 0;
         });
}

void PlanDrafts(const SchedulerState& state, BlockBudget* budget,
                int32_t* token_budget, StepDecision* decision) {
  if (state.num_speculating == 0) return;
  const int32_t page_size = state.layout().page_size;
  const int32_t num_groups = state.layout().num_groups();
  std::optional<int32_t> spare;
  // The other half of the budget is left for waiting requests. Otherwise
  // sequences with drafts could keep them out for as long as they run.
  const int32_t left_for_others =
      state.waiting.front() == nullptr || state.manager.num_open_slots() == 0
          ? 0
          : *token_budget / 2;
  for (StepDecision::Run& run : decision->runs) {
    if (*token_budget <= left_for_others) return;
    const RequestState& request = *run.request;
    if (request.num_drafts == 0 || run.order >= 0) continue;
    int32_t num_drafts = std::min(MaxDrafts(request, state.options()),
                                  *token_budget - left_for_others);
    const SequenceCache& sequence = state.manager.sequence(request.slot);
    const int32_t end = sequence.num_reserved + run.num_tokens - sequence.cut();
    const int32_t room = CeilDiv(end, page_size) * page_size - end;
    if (num_drafts > room) {
      if (!spare.has_value()) {
        spare = CountSpareBlocks(state, *decision, *budget);
      }
      num_drafts = static_cast<int32_t>(std::min<int64_t>(
          num_drafts, room + int64_t{*spare / num_groups} * page_size));
    }
    if (num_drafts <= 0) continue;
    if (num_drafts > room) {
      const int32_t num_blocks =
          num_groups * CeilDiv(num_drafts - room, page_size);
      *spare -= num_blocks;
      budget->available -= num_blocks;
      run.num_blocks += num_blocks;
    }
    *token_budget -= num_drafts;
    run.num_tokens += num_drafts;
    run.num_drafts = num_drafts;
    decision->has_drafts = true;
  }
}

int32_t MaxDrafts(const RequestState& request,
                  const SchedulerOptions& options) {
  int32_t end = request.last_length();
  if (request.next_compression < std::ssize(request.eviction.compressions)) {
    end = std::min(
        end,
        request.eviction.compressions[request.next_compression].length - 1);
  }
  return std::min({request.num_drafts, options.num_speculative_tokens,
                   end - request.num_tokens()});
}

}  // namespace blockmgr
