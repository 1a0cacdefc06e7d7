#include "scheduler/order_planner.h"

#include <algorithm>
#include <vector>

#include "blockmgr/base/check.h"
#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"

namespace blockmgr {

bool OrderPlanner::MayOrder(const RequestState& request, int32_t next,
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

bool OrderPlanner::Plan(const RequestState& request, int32_t length,
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
      match == nullptr
          ? state_.manager.sequence(request.slot).first().region.get()
          : match->record();
  const int32_t cut_now = region == nullptr ? 0 : region->cut;
  order->futile = order->point.cut <= cut_now;
  if (order->futile) return true;
  const int32_t num_destinations = RegionBlocks(order->point, state_.layout());
  order->num_destinations = num_destinations;
  const int32_t num_below =
      (order->point.cut - cut_now) / state_.layout().page_size +
      (region == nullptr ? 0 : static_cast<int32_t>(region->blocks.size()));
  // A repeated eviction can be futile, too, because an engine may keep another
  // number of entries than the first time.
  order->futile = num_below <= num_destinations;
  if (order->futile) return true;
  // A shared block stays in use until its last user leaves it.
  int32_t num_shared = 0;
  if (match == nullptr) {
    order->num_own = state_.manager
                         .CountCovered(request.slot, 0, order->point.cut,
                                       order->point.length)
                         .num_own;
    num_shared = num_below - order->num_own;
  } else {
    // Matched blocks may be shared by another admission of this very step: only
    // those it is about to take count as its own.
    const int32_t num_own =
        match->swap == kNoSwap
            ? (order->point.cut - match->num_tokens) / state_.layout().page_size
            : num_below - static_cast<int32_t>(match->blocks.size()) -
                  (match->num_region_blocks() - match->num_region_ins());
    order->num_own = std::max(0, num_own);
    num_shared = match->num_saved();
  }
  order->num_gained = num_below - num_destinations - num_shared;
  PlanWindows(request, match, order);
  return true;
}

void OrderPlanner::PlanWindows(const RequestState& request,
                               const PrefixMatch* match,
                               StepDecision::Order* order) const {
  order->windows.clear();
  const CompressionPoint& point = order->point;
  if (!point.target.evicts_in_windows()) return;
  const bool is_open = match == nullptr || match->source != kNoSequenceSlot;
  const SequenceSlot slot = match == nullptr ? request.slot : match->source;
  for (int32_t group = 1; group < state_.layout().num_groups(); ++group) {
    StepDecision::Order::Window window{.group = group};
    window.page_total = WindowPagesOf(point, group, state_.layout());
    window.num_destinations = static_cast<int32_t>(CeilDiv<int64_t>(
        window.page_total, state_.layout().shard_pages_per_block()));
    if (is_open) {
      window.covered =
          state_.manager.CountCovered(slot, group, point.cut, point.length);
    } else {
      GroupRegion was;
      if (match->swap != kNoSwap) {
        was = state_.manager.host().at(match->swap).regions[group];
      } else if (match->cached != nullptr) {
        was = match->cached->window(group);
      }
      window.covered.num_blocks =
          was.NumCovered(state_.layout(), group, point.cut, point.length);
    }
    if (match != nullptr && match->swap != kNoSwap) {
      window.covered.num_own = window.covered.num_blocks;  // what comes back
    } else if (match != nullptr) {
      // The blocks that the request is about to take.
      const int32_t begin =
          std::max(state_.layout().FirstPage(group, point.length + 1),
                   match->num_tokens / state_.layout().page_size);
      window.covered.num_own =
          std::max(0, point.cut / state_.layout().page_size - begin);
    }
    if (window.page_total == 0 ||
        window.num_destinations >= window.covered.num_blocks) {
      continue;
    }
    order->num_gained += window.covered.num_own - window.num_destinations;
    order->windows.push_back(window);
  }
}

bool OrderPlanner::IsSqueezed(const RequestState& request) const {
  return request.eviction.squeeze != nullptr &&
         std::ranges::find(decision_.squeezed, &request) !=
             decision_.squeezed.end();
}

bool OrderPlanner::PlanUnplannedPoint(const RequestState& request,
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
  point->cut = command.cut != 0 ? command.cut
                                : LargestCut(length, state_.layout().page_size);
  // A request that was preempted after the command may be shorter than the cut.
  if (point->cut >= length) return false;
  point->policy = command.policy;
  // The protected tail stays as long as asked for, even if fewer queries are at
  // hand.
  if (command.policy.protect.recent_percent == 0) {
    point->policy.protect.recent = command.policy.protected_recent();
  }
  const int32_t num_in_cache =
      match == nullptr ? request.num_in_cache : match->num_tokens;
  const int32_t num_kept =
      std::max(request.QueriesKept(state_.options().query_window), 1);
  const int32_t at_hand =
      std::min({length - num_in_cache, num_kept,
                state_.options().max_query_window(), request.max_chunk});
  point->policy.scorer.window = std::min(command.policy.scorer.window, at_hand);
  point->policy.scorer.obs_window =
      std::min(command.policy.scorer.obs_window, at_hand);
  point->target = command.target;
  point->scores = command.scores;
  point->budgets = command.budgets;
  ResolvePoint(command.table, state_.layout(), point);
  return true;
}

int32_t OrderPlanner::NumFresh(const StepDecision::Order& order,
                               int32_t headroom) const {
  if (order.futile) return 0;
  const bool copies =
      state_.options().compaction == CompactionPreference::kFreshFirst &&
      !order.point.in_place && order.num_copied() <= headroom;
  return copies ? order.num_copied() : order.num_lacking();
}

}  // namespace blockmgr
