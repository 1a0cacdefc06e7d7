// Deciding what a step does.

#include <algorithm>
#include <numeric>
#include <utility>

#include "blockmgr/base/check.h"
#include "scheduler/footprint.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {

void StepDecision::Clear() {
  preempted.clear();
  runs.clear();
  matches.clear();
  orders.clear();
}

int32_t SchedulerImpl::TokensToRun(const RequestState& request,
                                   int32_t num_computed,
                                   int32_t token_budget) const {
  int32_t end = std::min(request.num_tokens(), request.last_length());
  const bool has_point =
      request.next_compression < std::ssize(request.compressions);
  int32_t window = 0;
  if (has_point) {
    const CompressionPoint& point =
        request.compressions[request.next_compression];
    if (end >= point.length) {
      end = point.length;
      window = std::min(point.policy.query_window(), end - num_computed);
    }
  }
  const int32_t gap = end - num_computed;
  if (gap <= 0) return 0;
  int32_t tokens = std::min(gap, token_budget);
  if (options_.long_prefill_token_threshold > 0) {
    tokens = std::min(tokens, options_.long_prefill_token_threshold);
  }
  // The chunk that ends at a compression point holds the observation window:
  // shorten this one so that the last is not too short.
  if (tokens < gap && gap - tokens < window) tokens = gap - window;
  const bool reaches_point =
      has_point && tokens == gap &&
      end == request.compressions[request.next_compression].length;
  if (reaches_point && request.order_in_flight) return 0;
  return std::max(tokens, 0);
}

bool SchedulerImpl::PlanOrder(const RequestState& request, int32_t length,
                              int32_t num_in_cache,
                              StepDecision::Order* order) const {
  const bool has_point =
      request.next_compression < std::ssize(request.compressions);
  if (has_point) {
    const CompressionPoint& point =
        request.compressions[request.next_compression];
    if (point.length != length) return false;
    order->point = point;
  } else if (request.command.has_value() && !request.order_in_flight &&
             length > request.num_prompt && length == request.num_tokens()) {
    const EvictionCommand& command = request.command->command;
    CompressionPoint& point = order->point;
    point.length = length;
    point.cut =
        command.cut != 0 ? command.cut : LargestCut(length, layout().page_size);
    // A request preempted since it was asked for is not that long again yet.
    if (point.cut >= length) return false;
    point.policy = command.policy;
    // What is protected does not shrink with the queries that are at hand.
    point.policy.protect.recent = command.policy.protected_recent();
    const int32_t at_hand =
        std::min({length - num_in_cache, std::max(options_.query_window, 1),
                  MaxWindow()});
    point.policy.scorer.window =
        std::min(command.policy.scorer.window, at_hand);
    point.policy.scorer.obs_window =
        std::min(command.policy.scorer.obs_window, at_hand);
    point.target = command.target;
    point.scores = command.scores;
    point.budgets = command.budgets;
    ResolveTable(command.table, {.cut = point.cut, .length = length}, layout(),
                 &point);
    point.command = request.command->number;
  } else {
    return false;
  }
  const SequenceCache* sequence =
      request.running ? &manager_.sequence(request.slot) : nullptr;
  const int32_t cut_now = sequence == nullptr ? 0 : sequence->cut();
  order->futile = order->point.cut <= cut_now;
  if (order->futile) return true;
  order->page_total = PagesOf(order->point, layout());
  const auto num_destinations = static_cast<int32_t>(
      CeilDiv<int64_t>(order->page_total, layout().pages_per_block()));
  const int32_t num_below =
      sequence == nullptr
          ? order->point.cut / layout().page_size
          : sequence->BlocksBelow(order->point.cut, layout().page_size);
  order->num_released = num_below - num_destinations;
  // A replay can be futile too: nobody promises that an engine keeps as much as
  // it did the first time.
  order->futile = order->num_released <= 0;
  return true;
}

int32_t SchedulerImpl::FreshForOrder(const StepDecision::Order& order,
                                     int32_t num_own, int32_t available) const {
  if (order.futile) return 0;
  const auto num_destinations = static_cast<int32_t>(
      CeilDiv<int64_t>(order.page_total, layout().pages_per_block()));
  const bool copies =
      options_.compaction == CompactionPreference::kFreshFirst &&
      num_destinations + watermark_blocks_ <= available;
  return copies ? num_destinations : std::max(0, num_destinations - num_own);
}

int32_t SchedulerImpl::MaxCachedTokens(const RequestState& request) const {
  // Scores are accumulated from the first token on.
  if (request.scorer_state != ScorerState::kNone) return 0;
  // At least one token is computed, and every observation window is.
  int32_t limit = static_cast<int32_t>(request.tokens.size()) - 1;
  for (const CompressionPoint& point : request.compressions) {
    limit = std::min(limit,
                     point.length - std::max(1, point.policy.query_window()));
  }
  return std::max(limit, 0);
}

bool SchedulerImpl::HasScorerState(const RequestState& request) const {
  if (request.scorer_state == ScorerState::kNone) return true;
  const auto needs = [](const RequestState* other) {
    return other->scorer_state != ScorerState::kNone;
  };
  const auto num_running = std::ranges::count_if(running_, needs);
  const auto num_admitted =
      std::ranges::count_if(decision_.runs, [&](const StepDecision::Run& run) {
        return run.match >= 0 && needs(run.request);
      });
  return num_running + num_admitted < options_.num_scorer_states;
}

int32_t SchedulerImpl::BlocksComing() const {
  int32_t coming = manager_.num_fenced();
  for (const StepInFlight& step : in_flight_) {
    for (const StepInFlight::Order& order : step.orders) {
      if (!order.futile && !IsStale(step.runs[order.run])) {
        coming += order.num_released;
      }
    }
  }
  return coming;
}

bool SchedulerImpl::MakeRoom(RequestState* request, int32_t needed,
                             BlockBudget* budget, size_t* end) {
  // Who needs nothing runs, even when blocks are kept for somebody older.
  while (needed > 0 && needed > budget->available) {
    RequestState* victim = running_[*end - 1];
    const bool can_wait = !in_flight_.empty();
    if (!can_wait && *end == 1) {
      // Nobody else is left: all but its own blocks can be taken, those too
      // that the others shared among themselves. In the whole pool it fits
      // (Submit).
      BM_CHECK(victim == request);
      budget->available =
          manager_.num_usable() - manager_.sequence(request->slot).num_blocks();
      return true;
    }
    if (can_wait &&
        (victim == request || needed <= budget->available + budget->coming)) {
      // Blocks are on their way: keep what there is for this request.
      budget->available -= needed;
      return false;
    }
    --*end;
    decision_.preempted.push_back(victim);
    if (victim == request) return false;
    (can_wait ? budget->coming : budget->available) +=
        manager_.NumReleasable(victim->slot);
  }
  return true;
}

bool SchedulerImpl::PlanRun(RequestState* request, int32_t num_tokens,
                            BlockBudget* budget, size_t* end) {
  const SequenceCache& sequence = manager_.sequence(request->slot);
  const int32_t page_size = layout().page_size;
  const int32_t for_tokens = sequence.BlocksFor(num_tokens, page_size);
  int32_t needed = for_tokens;
  StepDecision::Order order;
  int32_t num_own = 0;
  const bool has_order = PlanOrder(*request, request->num_computed + num_tokens,
                                   request->num_in_cache, &order);
  if (has_order && !order.futile) {
    num_own = manager_.NumOwnBlocks(request->slot, order.point.cut);
    // Without room for copies it is done in place, as far as blocks are its
    // own.
    needed += FreshForOrder(order, num_own, 0);
  }
  if (!MakeRoom(request, needed, budget, end)) return false;
  StepDecision::Run run;
  run.request = request;
  run.num_tokens = num_tokens;
  if (has_order) {
    if (*end == 1 && in_flight_.empty()) {
      // Nobody is left to share with.
      num_own = sequence.BlocksBelow(order.point.cut, page_size);
    }
    order.num_fresh =
        FreshForOrder(order, num_own, budget->available - for_tokens);
    needed = for_tokens + order.num_fresh;
    run.order = static_cast<int32_t>(decision_.orders.size());
    decision_.orders.push_back(std::move(order));
  }
  BM_CHECK(needed == 0 || needed <= budget->available);
  budget->available -= needed;
  decision_.runs.push_back(run);
  return true;
}

void SchedulerImpl::PlanRunning(BlockBudget* budget, int32_t* token_budget) {
  size_t end = running_.size();
  for (size_t i = 0; i<end&& * token_budget> 0; ++i) {
    RequestState* request = running_[i];
    const int32_t num_tokens =
        TokensToRun(*request, request->num_computed, *token_budget);
    if (num_tokens == 0) continue;
    if (PlanRun(request, num_tokens, budget, &end)) {
      *token_budget -= num_tokens;
    }
  }
}

int32_t SchedulerImpl::BlocksPromised() const {
  int32_t promised = 0;
  for (const RequestState* request : running_) {
    const auto known = static_cast<int32_t>(request->tokens.size());
    if (request->num_computed >= known) continue;
    promised +=
        manager_.sequence(request->slot)
            .BlocksFor(known - request->num_computed, layout().page_size);
  }
  // What this step takes of it is already gone from the available blocks.
  for (const StepDecision::Run& run : decision_.runs) {
    const RequestState& request = *run.request;
    if (run.match >= 0) {
      const int32_t page_size = layout().page_size;
      const auto num_matched =
          static_cast<int32_t>(decision_.matches[run.match].blocks.size());
      promised +=
          CeilDiv(static_cast<int32_t>(request.tokens.size()), page_size) -
          CeilDiv(num_matched * page_size + run.num_tokens, page_size);
      continue;
    }
    if (request.num_computed >= std::ssize(request.tokens)) continue;
    promised -= manager_.sequence(request.slot)
                    .BlocksFor(run.num_tokens, layout().page_size);
  }
  return promised;
}

bool SchedulerImpl::PlanAdmission(RequestState* request, PrefixMatch match,
                                  BlockBudget* budget, int32_t* token_budget) {
  const int32_t page_size = layout().page_size;
  const auto num_matched = static_cast<int32_t>(match.blocks.size());
  const int32_t num_cached = num_matched * page_size;
  const int32_t num_tokens = TokensToRun(*request, num_cached, *token_budget);
  if (num_tokens == 0) return false;
  const int32_t needed = CeilDiv(num_cached + num_tokens, page_size) -
                         num_matched + match.num_reclaimable;
  // Everything known, at its peak: evictions on the way (a resumed request
  // replays them) may be what makes it fit.
  const int32_t whole_prompt =
      PeakBlocks(static_cast<int32_t>(request->tokens.size()),
                 request->compressions, layout()) -
      num_matched + match.num_reclaimable;
  const bool alone = running_.empty() && decision_.runs.empty();
  if (whole_prompt + (alone ? 0 : watermark_blocks_) >
      budget->available + budget->coming - BlocksPromised()) {
    return false;
  }
  StepDecision::Order order;
  const bool has_order =
      PlanOrder(*request, num_cached + num_tokens, num_cached, &order);
  int32_t num_fresh = 0;
  if (has_order) {
    // Matched blocks may be shared by another admission of this very step: only
    // those it is about to take count as its own.
    const int32_t num_own =
        std::max(0, order.point.cut / page_size - num_matched);
    num_fresh = FreshForOrder(order, num_own, budget->available - needed);
  }
  if (needed + num_fresh > budget->available) return false;
  StepDecision::Run run;
  run.request = request;
  run.num_tokens = num_tokens;
  if (has_order) {
    order.num_fresh = num_fresh;
    run.order = static_cast<int32_t>(decision_.orders.size());
    decision_.orders.push_back(std::move(order));
  }
  run.match = static_cast<int32_t>(decision_.matches.size());
  decision_.matches.push_back(std::move(match));
  decision_.runs.push_back(run);
  budget->available -= needed + num_fresh;
  *token_budget -= num_tokens;
  return true;
}

void SchedulerImpl::PlanWaiting(BlockBudget* budget, int32_t* token_budget) {
  // Blocks that an eviction takes in place may leave the prefix cache: nobody
  // is admitted on them in the same step.
  for (const StepDecision::Order& order : decision_.orders) {
    if (!order.futile && order.num_fresh * int64_t{layout().pages_per_block()} <
                             order.page_total) {
      return;
    }
  }
  const int32_t num_open = manager_.num_open_slots();
  for (RequestState* request : waiting_) {
    if (*token_budget <= 0 || std::ssize(decision_.matches) >= num_open) {
      return;
    }
    if (!HasScorerState(*request)) return;
    PrefixMatch match;
    if (manager_.prefix_caching()) {
      ExtendBlockKeys(request->tokens, layout().page_size, &request->keys);
      match = manager_.Match(request->keys, request->tokens,
                             MaxCachedTokens(*request));
    }
    const bool matched = !match.blocks.empty();
    if (PlanAdmission(request, std::move(match), budget, token_budget)) {
      continue;
    }
    // Alone in the pool, a request that cannot afford both its cached prefix
    // and a copy of its survivors starts from nothing.
    const bool alone = running_.empty() && decision_.runs.empty() &&
                       in_flight_.empty() && matched;
    if (!alone || !PlanAdmission(request, {}, budget, token_budget)) return;
  }
}

}  // namespace blockmgr
