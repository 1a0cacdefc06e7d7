#include "scheduler/step_planner.h"

#include <algorithm>
#include <utility>

#include "blockmgr/base/check.h"
#include "scheduler/block_promises.h"
#include "scheduler/chunking.h"
#include "scheduler/drafts.h"

namespace blockmgr {
namespace {

// The most waiting requests that count when the budget is shared.
constexpr int32_t kMaxSharers = 16;

}  // namespace

StepDecision* StepPlanner::Plan() {
  if (state_.num_steps_in_flight() >= state_.options().max_steps_in_flight) {
    return nullptr;
  }
  if (state_.running.empty() && state_.waiting.empty()) return nullptr;
  if (AwaitsDrafts(state_)) return nullptr;
  decision_.Clear(state_.requests.num_objects());
  BlockBudget budget = BlocksNow();
  int32_t token_budget = state_.options().max_num_batched_tokens;
  PlanShares(token_budget);
  pressure_.Plan(budget);
  PlanRunning(&budget, &token_budget);
  PlanCopies(&budget);
  if (decision_.preempted.empty() && budget.available >= 0) {
    PlanDrafts(state_, &budget, &token_budget, &decision_);
    admission_.Plan(&budget, &token_budget);
    TopUp(&budget, &token_budget);
  }
  if (!decision_.runs.empty()) return &decision_;
  // All requests wait for steps in flight. Without a step in flight, some
  // request could run.
  BM_CHECK(!state_.in_flight.empty());
  return nullptr;
}

void StepPlanner::PlanShares(int32_t token_budget) {
  if (state_.options().chunk_policy != ChunkPolicy::kEqualProgress) return;
  gaps_.clear();
  for (const RequestState* request : state_.running) {
    const int32_t gap = CountTokensToRun(*request, token_budget);
    if (gap > 1) {
      gaps_.push_back(gap);
    } else {
      token_budget -= gap;
    }
  }
  // Requests to be admitted get shares like the others. TopUp hands out the
  // tokens that they leave.
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_new =
      std::min({state_.waiting.size(), state_.manager.num_open_slots(),
                std::max(1, token_budget / page_size)});
  walk_.Restart();
  for (int32_t i = 0; i < std::min(num_new, kMaxSharers); ++i) {
    const RequestState* request = walk_.Next();
    if (request == nullptr) break;
    gaps_.push_back(static_cast<int32_t>(request->tokens.size()));
  }
  decision_.chunk_share = EqualShare(token_budget, page_size, &gaps_);
}

void StepPlanner::PlanRunning(BlockBudget* budget, int32_t* token_budget) {
  decision_.fates.assign(state_.running.size(), StepDecision::Fate::kKept);
  decision_.num_kept = static_cast<int32_t>(state_.running.size());
  for (size_t i = 0; i < state_.running.size() && *token_budget > 0; ++i) {
    if (decision_.fates[i] == StepDecision::Fate::kPreempted) continue;
    const RequestState& request = *state_.running[i];
    const int32_t num_tokens = CountTokensToRun(request, *token_budget);
    if (num_tokens == 0) continue;
    if (PlanRun(i, num_tokens, budget)) *token_budget -= num_tokens;
  }
}

bool StepPlanner::PlanRun(size_t index, int32_t num_tokens,
                          BlockBudget* budget) {
  const RequestState* request = state_.running[index];
  StepDecision::Run run;
  run.request = request;
  run.num_tokens = num_tokens;
  run.num_blocks = state_.manager.CountBlocksNeeded(request->slot, num_tokens);
  if (orders_.MayOrder(*request, request->next_compression,
                       request->num_computed + num_tokens)) {
    if (!PlanRunWithOrder(index, &run, budget)) return false;
  } else if (!victims_.MakeRoom(index, run.num_blocks, budget)) {
    return false;
  }
  BM_CHECK(run.num_blocks == 0 || budget->available >= run.num_blocks);
  budget->available -= run.num_blocks;
  decision_.Add(run);
  return true;
}

bool StepPlanner::PlanRunWithOrder(size_t index, StepDecision::Run* run,
                                   BlockBudget* budget) {
  const RequestState& request = *run->request;
  StepDecision::Order order;
  if (!orders_.Plan(request, request.num_computed + run->num_tokens, nullptr,
                    &order)) {
    return victims_.MakeRoom(index, run->num_blocks, budget);
  }
  // The eviction uses the request's own blocks as far as possible, because
  // blocks for later runs are more important than copies.
  const int32_t num_fresh = orders_.CountFresh(order, 0);
  const int32_t needed = run->num_blocks + num_fresh;
  // If a sharer is about to leave the shared blocks, they become the request's
  // own and need no copy. So no request is preempted for the copy.
  if (num_fresh > 0 && needed > budget->available &&
      victims_.IsLeftBySharer(request)) {
    return false;
  }
  if (!victims_.MakeRoom(index, needed, budget)) return false;
  if (decision_.num_kept == 1 && state_.in_flight.empty()) {
    // No other request is left that could share blocks with this one.
    for (StepDecision::GroupOrder& group : order.groups) {
      group.covered.num_own = group.covered.num_blocks;
    }
  }
  order.num_fresh = orders_.CountFresh(order, 0);
  BM_CHECK(order.num_fresh == 0 ||
           run->num_blocks + order.num_fresh <= budget->available);
  budget->available -= order.num_fresh;
  run->order = static_cast<int32_t>(decision_.orders.size());
  decision_.orders.push_back(std::move(order));
  return true;
}

int32_t StepPlanner::CountTokensToRun(const RequestState& running,
                                      int32_t token_budget) const {
  return blockmgr::CountTokensToRun(
      running, running.eviction,
      {.num_computed = running.num_computed,
       .next_compression = running.next_compression},
      token_budget, decision_.chunk_share);
}

void StepPlanner::PlanCopies(BlockBudget* budget) {
  for (StepDecision::Order& order : decision_.orders) {
    // A squeeze takes no fresh blocks, because blocks are short.
    if (order.point.is_squeeze()) continue;
    const int32_t num_fresh = orders_.CountFresh(
        order, orders_.Headroom(budget->available + order.num_fresh));
    budget->available -= num_fresh - order.num_fresh;
    order.num_fresh = num_fresh;
  }
}

BlockBudget StepPlanner::BlocksNow() const {
  BlockBudget budget{.available = state_.manager.num_available(),
                     .coming = state_.manager.num_fenced()};
  if (state_.layout().has_windows()) {
    for (const RequestState* request : state_.running) {
      const FallingBlocks falling = state_.manager.CountFalling(request->slot);
      budget.coming += falling.num_own;
      budget.perhaps += falling.num_shared;
    }
  }
  for (const StepInFlight& step : state_.in_flight) {
    for (const StepInFlight::Order& order : step.orders) {
      if (order.is_futile() || step.runs[order.run].is_stale()) continue;
      if (order.point.is_planned) {
        budget.coming += order.num_released;
        continue;
      }
      // The engine may refuse a command or a squeeze, so their blocks are not
      // promised to any request. A request's own evictions are promised,
      // because engines seldom refuse them, and admission relies on them.
      budget.perhaps += order.num_released;
      if (order.point.is_squeeze()) budget.squeezed += order.num_released;
    }
  }
  return budget;
}

void StepPlanner::TopUp(BlockBudget* budget, int32_t* token_budget) {
  if (decision_.chunk_share == kNoShare) return;
  decision_.chunk_share = kNoShare;
  const int32_t page_size = state_.layout().page_size;
  for (StepDecision::Run& run : decision_.runs) {
    if (*token_budget <= 0) return;
    if (run.order >= 0) continue;
    const RequestState& request = *run.request;
    const PrefixMatch* match =
        run.match < 0 ? nullptr : &decision_.matches[run.match];
    const EvictionPlan& eviction = decision_.EvictionOf(request);
    const int32_t next = match == nullptr
                             ? request.next_compression
                             : NextCompression(request, eviction, *match);
    const int32_t begin =
        match == nullptr ? request.num_computed : match->num_tokens;
    const int32_t num_tokens = blockmgr::CountTokensToRun(
        request, eviction, {.num_computed = begin, .next_compression = next},
        run.num_tokens + *token_budget, decision_.chunk_share);
    // A chunk that would end at a compression point is left to the next step.
    if (num_tokens <= run.num_tokens ||
        orders_.MayOrder(request, next, begin + num_tokens)) {
      continue;
    }
    const int32_t more = state_.layout().num_groups() *
                         (CeilDiv(begin + num_tokens, page_size) -
                          CeilDiv(begin + run.num_tokens, page_size));
    if (more > budget->available) continue;
    budget->available -= more;
    *token_budget -= num_tokens - run.num_tokens;
    run.num_blocks += more;
    run.num_tokens = num_tokens;
  }
}

}  // namespace blockmgr
