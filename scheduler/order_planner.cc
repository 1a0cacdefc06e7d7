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
  const int32_t cut_now = match == nullptr
                              ? state_.manager.sequence(request.slot).cut()
                              : match->cut();
  if (order->point.cut <= cut_now) return true;
  for (int32_t group = 0; group < state_.layout().num_groups(); ++group) {
    const StepDecision::GroupOrder found =
        PlanGroup(request, order->point, group, match);
    if (found.num_destinations >= found.covered.num_blocks) {
      // A repeated eviction can be futile, too, because an engine may keep
      // another number of entries than the first time.
      if (group == 0) return true;
      continue;
    }
    // A shared block stays in use until its last user leaves it. The eviction
    // of matched blocks with full attention frees those that nobody else uses,
    // though they are not the request's own yet. Blocks of a window may leave
    // the window before.
    const bool frees_matched =
        match != nullptr && state_.layout().kind_of(group) == GroupKind::kFull;
    const int32_t num_freed =
        frees_matched ? found.covered.num_blocks - match->CountSaved()
                      : found.covered.num_own;
    order->num_gained += num_freed - found.num_destinations;
    order->groups.push_back(found);
  }
  return true;
}

StepDecision::GroupOrder OrderPlanner::PlanGroup(
    const RequestState& request, const CompressionPoint& point, int32_t group,
    const PrefixMatch* match) const {
  StepDecision::GroupOrder order{.group = group};
  order.page_total = CountGroupPages(point, group, state_.layout());
  if (order.page_total == 0) return order;
  order.num_destinations = static_cast<int32_t>(CeilDiv<int64_t>(
      order.page_total, state_.layout().shard_pages_per_block()));
  order.covered = match == nullptr
                      ? state_.manager.CountCovered(request.slot, group,
                                                    point.cut, point.length)
                      : CoveredOf(*match, point, group);
  return order;
}

CoveredBlocks OrderPlanner::CoveredOf(const PrefixMatch& match,
                                      const CompressionPoint& point,
                                      int32_t group) const {
  const ModelLayout& layout = state_.layout();
  CoveredBlocks covered;
  if (match.source != kNoSequenceSlot) {
    covered.num_blocks =
        state_.manager
            .CountCovered(match.source, group, point.cut, point.length)
            .num_blocks;
  } else {
    GroupRegion region;
    if (match.swap != kNoSwap) {
      region = state_.manager.host().at(match.swap).regions[group];
    } else if (match.cached != nullptr) {
      region = match.cached->groups[group];
    }
    covered.num_blocks =
        region.CountCovered(layout, group, point.cut, point.length);
  }
  if (match.swap != kNoSwap) {
    // The blocks that the cache does not have come back into blocks of the
    // request's own.
    const MatchedGroup& own = match.groups[group];
    covered.num_own = covered.num_blocks -
                      static_cast<int32_t>(match.blocks_of(group).size()) -
                      (own.num_region_blocks() - own.num_region_ins);
  } else {
    // Matched blocks may be shared by another admission of this very step. So
    // only the blocks that the request is about to take count as its own.
    const int32_t begin = std::max(layout.FirstPage(group, point.length + 1),
                                   CeilDiv(match.num_tokens, layout.page_size));
    covered.num_own = point.cut / layout.page_size - begin;
  }
  covered.num_own = std::max(0, covered.num_own);
  return covered;
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
  // The protected tail keeps its length, even if fewer queries are at hand.
  if (command.policy.protect.recent_percent == 0) {
    point->policy.protect.recent = command.policy.protected_recent();
  }
  const int32_t num_in_cache =
      match == nullptr ? request.num_in_cache : match->num_tokens;
  const int32_t num_kept =
      std::max(request.CountQueriesKept(state_.options().query_window), 1);
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

int32_t OrderPlanner::CountFresh(const StepDecision::Order& order,
                                 int32_t headroom) const {
  const bool copies =
      state_.options().compaction == CompactionPreference::kFreshFirst &&
      !order.point.in_place && order.CountFresh(/*copies=*/true) <= headroom;
  return order.CountFresh(copies);
}

}  // namespace blockmgr
