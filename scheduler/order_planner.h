// OrderPlanner: finds the eviction that a step orders for a request, if any.
//
// An order is due at a compression point of the request (EvictionPlan), when a
// command waits for the request's next step, or when PressurePlanner has chosen
// to squeeze the request. Reads the state and the decision so far; changes
// nothing. Thread-compatible.
#ifndef SCHEDULER_ORDER_PLANNER_H_
#define SCHEDULER_ORDER_PLANNER_H_

#include <algorithm>
#include <cstdint>

#include "blockmgr/prefix_match.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

class OrderPlanner {
 public:
  // Borrows both arguments, which must outlive this object.
  OrderPlanner(const SchedulerState& state, const StepDecision& decision)
      : state_(state), decision_(decision) {}

  // Returns whether there may be an eviction to order with the step that ends
  // at `length`, when the request's compressions before `next` are made.
  bool MayOrder(const RequestState& request, int32_t next,
                int32_t length) const;
  // Fills in that eviction. Returns false if there is none. `match` is what a
  // request that is about to be admitted starts with, and null for a request
  // that runs.
  bool Plan(const RequestState& request, int32_t length,
            const PrefixMatch* match, StepDecision::Order* order) const;
  // Returns how many fresh blocks the order takes as destinations. If copies
  // are preferred and fit into `headroom`, all destinations are fresh.
  // Otherwise only the destinations are fresh that the sequence's own blocks
  // cannot provide.
  int32_t CountFresh(const StepDecision::Order& order, int32_t headroom) const;
  // Returns the blocks above the watermark: all orders of a step copy out of
  // this one headroom, once the running requests have what they need.
  int32_t Headroom(int32_t available) const {
    return std::max(0, available - state_.watermark_blocks);
  }

 private:
  // Returns what the point evicts from a group. The page total is 0 if it
  // evicts nothing.
  StepDecision::GroupOrder PlanGroup(const RequestState& request,
                                     const CompressionPoint& point,
                                     int32_t group,
                                     const PrefixMatch* match) const;
  // Returns what the point covers in a group of a request that is about to
  // start with `match`.
  CoveredBlocks CoveredOf(const PrefixMatch& match,
                          const CompressionPoint& point, int32_t group) const;
  bool IsSqueezed(const RequestState& request) const;
  // Fills in the point of a command or a squeeze. Returns false if there is
  // nothing left that it could evict.
  bool PlanUnplannedPoint(const RequestState& request, int32_t length,
                          const PrefixMatch* match,
                          CompressionPoint* point) const;

  const SchedulerState& state_;
  const StepDecision& decision_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_ORDER_PLANNER_H_
