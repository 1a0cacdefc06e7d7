// Deciding what a step does. Schedule() calls the parts in turn, which are in
// this and other files.

#include <algorithm>
#include <utility>

#include "blockmgr/base/check.h"
#include "scheduler/chunking.h"
#include "scheduler/compression_points.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Waiting requests that shares are counted for at most.
constexpr int32_t kMaxSharers = 16;

}  // namespace

bool SchedulerImpl::Schedule(StepPlan* plan) {
  if (num_steps_in_flight() >= options_.max_steps_in_flight) return false;
  if (running_.empty() && waiting_.empty()) return false;
  if (AwaitsDrafts()) return false;
  decision_.Clear(states_.size());
  BlockBudget budget = BlocksNow();
  int32_t token_budget = options_.max_num_batched_tokens;
  PlanShares(token_budget);
  PlanPressure(budget);
  PlanRunning(&budget, &token_budget);
  PlanCopies(&budget);
  if (decision_.preempted.empty() && budget.available >= 0) {
    PlanDrafts(&budget, &token_budget);
    PlanWaiting(&budget, &token_budget);
    TopUp(&budget, &token_budget);
  }
  if (decision_.runs.empty()) {
    // Everything waits for steps in flight; without any, somebody can run.
    BM_CHECK(!in_flight_.empty());
    return false;
  }
  Apply(plan);
  return true;
}

void SchedulerImpl::PlanShares(int32_t token_budget) {
  if (options_.chunk_policy != ChunkPolicy::kEqualProgress) return;
  gaps_.clear();
  for (const RequestState* request : running_) {
    const int32_t gap = TokensToRun(*request, request->next_compression,
                                    request->num_computed, token_budget);
    if (gap > 1) {
      gaps_.push_back(gap);
    } else {
      token_budget -= gap;
    }
  }
  // Those to be admitted count like the others; what they leave is handed out
  // afterwards (TopUp).
  const int32_t page_size = layout().page_size;
  const int32_t num_new = std::min({waiting_.size(), manager_.num_open_slots(),
                                    std::max(1, token_budget / page_size)});
  walk_.Restart();
  for (int32_t i = 0; i < std::min(num_new, kMaxSharers); ++i) {
    const RequestState* request = walk_.Next();
    if (request == nullptr) break;
    gaps_.push_back(static_cast<int32_t>(request->tokens.size()));
  }
  decision_.chunk_share = EqualShare(token_budget, page_size, &gaps_);
}

void SchedulerImpl::PlanRunning(BlockBudget* budget, int32_t* token_budget) {
  decision_.fates.assign(running_.size(), StepDecision::Fate::kKept);
  decision_.num_kept = num_running();
  for (size_t i = 0; i < running_.size() && *token_budget > 0; ++i) {
    if (decision_.fates[i] == StepDecision::Fate::kPreempted) continue;
    const RequestState& request = *running_[i];
    const int32_t num_tokens = TokensToRun(request, request.next_compression,
                                           request.num_computed, *token_budget);
    if (num_tokens == 0) continue;
    if (PlanRun(i, num_tokens, budget)) *token_budget -= num_tokens;
  }
}

bool SchedulerImpl::PlanRun(size_t index, int32_t num_tokens,
                            BlockBudget* budget) {
  RequestState* request = running_[index];
  StepDecision::Run run;
  run.request = request;
  run.num_tokens = num_tokens;
  run.num_blocks = manager_.BlocksNeeded(request->slot, num_tokens);
  if (MayOrder(*request, request->next_compression,
               request->num_computed + num_tokens)) {
    if (!PlanRunWithOrder(index, &run, budget)) return false;
  } else if (!MakeRoom(index, run.num_blocks, budget)) {
    return false;
  }
  BM_CHECK(run.num_blocks == 0 || budget->available >= run.num_blocks);
  budget->available -= run.num_blocks;
  decision_.Add(run);
  return true;
}

bool SchedulerImpl::PlanRunWithOrder(size_t index, StepDecision::Run* run,
                                     BlockBudget* budget) {
  const RequestState& request = *run->request;
  StepDecision::Order order;
  if (!PlanOrder(request, request.num_computed + run->num_tokens, nullptr,
                 &order)) {
    return MakeRoom(index, run->num_blocks, budget);
  }
  // In place, as far as blocks are its own: who runs after it comes before
  // copies.
  const int32_t num_fresh = FreshForOrder(order, 0);
  const int32_t needed = run->num_blocks + num_fresh;
  // What another is about to leave is its own afterwards, and need not be
  // copied: nobody is preempted for that.
  if (num_fresh > 0 && needed > budget->available && IsLeftBySharer(request)) {
    return false;
  }
  if (!MakeRoom(index, needed, budget)) return false;
  if (decision_.num_kept == 1 && in_flight_.empty()) {
    // Nobody is left to share with.
    order.num_own = manager_.sequence(request.slot)
                        .BlocksBelow(order.point.cut, layout().page_size);
    for (StepDecision::Order::Window& window : order.windows) {
      window.covered.num_own = window.covered.num_blocks;
    }
  }
  order.num_fresh = FreshForOrder(order, 0);
  BM_CHECK(order.num_fresh == 0 ||
           run->num_blocks + order.num_fresh <= budget->available);
  budget->available -= order.num_fresh;
  run->order = static_cast<int32_t>(decision_.orders.size());
  decision_.orders.push_back(std::move(order));
  return true;
}

int32_t SchedulerImpl::TokensToRun(const RequestState& request, int32_t next,
                                   int32_t num_computed,
                                   int32_t token_budget) const {
  const std::vector<CompressionPoint>& points =
      decision_.EvictionOf(request).compressions;
  int32_t end = std::min(request.num_tokens(), request.last_length());
  const bool has_point = next < std::ssize(points);
  int32_t window = 0;
  if (has_point) {
    const CompressionPoint& point = points[next];
    if (end >= point.length) {
      end = point.length;
      window = std::min(point.policy.query_window(), end - num_computed);
    }
  }
  const int32_t gap = end - num_computed;
  if (gap <= 0) return 0;
  int32_t tokens = std::min({gap, token_budget, request.max_chunk});
  // A share does not cut an observation window that the step has room for.
  tokens = std::min(tokens, std::max(decision_.chunk_share, window));
  // The chunk that ends at a compression point holds the observation window:
  // shorten this one so that the last is not too short.
  if (tokens < gap && gap - tokens < window) tokens = gap - window;
  const bool reaches_point =
      has_point && tokens == gap && end == points[next].length;
  if (reaches_point && request.order_in_flight) return 0;
  return std::max(tokens, 0);
}

bool SchedulerImpl::MayOrder(const RequestState& request, int32_t next,
                             int32_t length) const {
  const std::vector<CompressionPoint>& points =
      decision_.EvictionOf(request).compressions;
  if (next < std::ssize(points) && points[next].length <= length) {
    return points[next].length == length;
  }
  return (request.command != nullptr || IsSqueezed(request)) &&
         !request.order_in_flight && length > request.num_prompt &&
         length == request.num_tokens();
}

bool SchedulerImpl::PlanOrder(const RequestState& request, int32_t length,
                              const PrefixMatch* match,
                              StepDecision::Order* order) const {
  const EvictionPlan& eviction = decision_.EvictionOf(request);
  const int32_t next = match == nullptr
                           ? request.next_compression
                           : NextCompression(request, eviction, *match);
  if (!MayOrder(request, next, length)) return false;
  if (next < std::ssize(eviction.compressions) &&
      eviction.compressions[next].length == length) {
    order->point = eviction.compressions[next];
  } else if (!PlanUnplannedPoint(request, length, match, &order->point)) {
    return false;
  }
  const RegionRecord* region =
      match == nullptr ? manager_.sequence(request.slot).region.get()
                       : match->record();
  const int32_t cut_now = region == nullptr ? 0 : region->cut;
  order->futile = order->point.cut <= cut_now;
  if (order->futile) return true;
  const int32_t num_destinations = RegionBlocks(order->point, layout());
  order->num_destinations = num_destinations;
  const int32_t num_below =
      (order->point.cut - cut_now) / layout().page_size +
      (region == nullptr ? 0 : static_cast<int32_t>(region->blocks.size()));
  // A replay can be futile too: nobody promises that an engine keeps as much as
  // it did the first time.
  order->futile = num_below <= num_destinations;
  if (order->futile) return true;
  // What others use stays until the last of them leaves it.
  int32_t num_shared = 0;
  if (match == nullptr) {
    order->num_own = manager_.NumOwnBlocks(request.slot, order->point.cut);
    num_shared = num_below - order->num_own;
  } else {
    // Matched blocks may be shared by another admission of this very step: only
    // those it is about to take count as its own.
    const int32_t num_own =
        match->swap == kNoSwap
            ? (order->point.cut - match->num_tokens) / layout().page_size
            : num_below - static_cast<int32_t>(match->blocks.size()) -
                  (match->num_region_blocks() - match->num_region_ins());
    order->num_own = std::max(0, num_own);
    num_shared = match->num_saved();
  }
  order->num_gained = num_below - num_destinations - num_shared;
  PlanWindows(request, match, order);
  return true;
}

void SchedulerImpl::PlanWindows(const RequestState& request,
                                const PrefixMatch* match,
                                StepDecision::Order* order) const {
  order->windows.clear();
  const CompressionPoint& point = order->point;
  if (!point.target.evicts_in_windows()) return;
  const bool is_open = match == nullptr || match->source != kNoSequenceSlot;
  const SequenceSlot slot = match == nullptr ? request.slot : match->source;
  for (int32_t group = 1; group < layout().num_groups(); ++group) {
    StepDecision::Order::Window window{.group = group};
    window.page_total = WindowPagesOf(point, group, layout());
    window.num_destinations = static_cast<int32_t>(
        CeilDiv<int64_t>(window.page_total, layout().shard_pages_per_block()));
    if (is_open) {
      window.covered =
          manager_.CoveredInWindow(slot, group, point.cut, point.length);
    } else {
      WindowRegion was;
      if (match->swap != kNoSwap) {
        was = manager_.host().at(match->swap).window(group);
      } else if (match->cached != nullptr) {
        was = match->cached->window(group);
      }
      window.covered.num_blocks =
          was.NumCovered(layout(), group, point.cut, point.length);
    }
    if (match != nullptr && match->swap != kNoSwap) {
      window.covered.num_own = window.covered.num_blocks;  // what comes back
    } else if (match != nullptr) {
      // What it is about to take.
      const int32_t begin =
          std::max(layout().FirstPage(group, point.length + 1),
                   match->num_tokens / layout().page_size);
      window.covered.num_own =
          std::max(0, point.cut / layout().page_size - begin);
    }
    if (window.page_total == 0 ||
        window.num_destinations >= window.covered.num_blocks) {
      continue;
    }
    order->num_gained += window.covered.num_own - window.num_destinations;
    order->windows.push_back(window);
  }
}

bool SchedulerImpl::IsSqueezed(const RequestState& request) const {
  return request.eviction.squeeze != nullptr &&
         std::ranges::find(decision_.squeezed, &request) !=
             decision_.squeezed.end();
}

bool SchedulerImpl::PlanUnplannedPoint(const RequestState& request,
                                       int32_t length, const PrefixMatch* match,
                                       CompressionPoint* point) const {
  const bool commanded = request.command != nullptr;
  const EvictionCommand* asked =
      commanded ? &request.command->command : request.eviction.squeeze.get();
  BM_CHECK(asked != nullptr);
  const EvictionCommand& command = *asked;
  point->is_planned = false;
  point->command = commanded ? request.command->number : 0;
  point->length = length;
  point->cut =
      command.cut != 0 ? command.cut : LargestCut(length, layout().page_size);
  // A request preempted since it was asked for is not that long again yet.
  if (point->cut >= length) return false;
  point->policy = command.policy;
  // What is protected does not shrink with the queries that are at hand.
  point->policy.protect.recent = command.policy.protected_recent();
  const int32_t num_in_cache =
      match == nullptr ? request.num_in_cache : match->num_tokens;
  // Of squeezes the engine knows the policy from the start.
  const int32_t query_window =
      std::max({options_.query_window, 1,
                commanded ? 0 : command.policy.query_window()});
  const int32_t at_hand =
      std::min({length - num_in_cache, query_window,
                options_.max_query_window(), request.max_chunk});
  point->policy.scorer.window = std::min(command.policy.scorer.window, at_hand);
  point->policy.scorer.obs_window =
      std::min(command.policy.scorer.obs_window, at_hand);
  point->target = command.target;
  point->scores = command.scores;
  point->budgets = command.budgets;
  ResolvePoint(command.table, layout(), point);
  return true;
}

void SchedulerImpl::PlanCopies(BlockBudget* budget) {
  for (StepDecision::Order& order : decision_.orders) {
    // A squeeze takes nothing from those who are short of blocks.
    if (order.point.is_squeeze()) continue;
    const int32_t num_fresh =
        FreshForOrder(order, Headroom(budget->available + order.num_fresh));
    budget->available -= num_fresh - order.num_fresh;
    order.num_fresh = num_fresh;
  }
}

int32_t SchedulerImpl::FreshForOrder(const StepDecision::Order& order,
                                     int32_t headroom) const {
  if (order.futile) return 0;
  const bool copies =
      options_.compaction == CompactionPreference::kFreshFirst &&
      !order.point.in_place && order.num_copied() <= headroom;
  return copies ? order.num_copied() : order.num_lacking();
}

BlockBudget SchedulerImpl::BlocksNow() const {
  BlockBudget budget{.available = manager_.num_available(),
                     .coming = manager_.num_fenced()};
  if (layout().has_windows()) {
    for (const RequestState* request : running_) {
      const int32_t num_own = manager_.NumFalling(request->slot);
      budget.coming += num_own;
      budget.perhaps += manager_.NumFallingOrShared(request->slot) - num_own;
    }
  }
  for (const StepInFlight& step : in_flight_) {
    for (const StepInFlight::Order& order : step.orders) {
      if (order.futile || IsStale(step.runs[order.run])) continue;
      if (order.point.is_planned) {
        budget.coming += order.num_released;
        continue;
      }
      // Nobody is promised what an engine may refuse to give back. (What
      // requests ask for is promised: as a rule engines do it, and the whole of
      // admission counts with it.)
      budget.perhaps += order.num_released;
      if (order.point.is_squeeze()) budget.squeezed += order.num_released;
    }
  }
  return budget;
}

void SchedulerImpl::TopUp(BlockBudget* budget, int32_t* token_budget) {
  if (decision_.chunk_share == kNoShare) return;
  decision_.chunk_share = kNoShare;
  const int32_t page_size = layout().page_size;
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
    const int32_t num_tokens =
        TokensToRun(request, next, begin, run.num_tokens + *token_budget);
    // A chunk that ends at a compression point is the next step's.
    if (num_tokens <= run.num_tokens ||
        MayOrder(request, next, begin + num_tokens)) {
      continue;
    }
    const int32_t more =
        layout().num_groups() * (CeilDiv(begin + num_tokens, page_size) -
                                 CeilDiv(begin + run.num_tokens, page_size));
    if (more > budget->available) continue;
    budget->available -= more;
    *token_budget -= num_tokens - run.num_tokens;
    run.num_blocks += more;
    run.num_tokens = num_tokens;
  }
}

}  // namespace blockmgr
