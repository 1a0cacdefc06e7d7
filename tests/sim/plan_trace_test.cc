// The trace of a run tells plans apart that differ in anything.

#include "tests/sim/plan_trace.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr::sim {
namespace {

using Change = std::function<void(StepPlan*)>;

std::shared_ptr<const RequestInfo> Info(std::string id, std::string data) {
  RequestInfo info;
  info.id = std::move(id);
  info.engine_data = std::move(data);
  return std::make_shared<const RequestInfo>(std::move(info));
}

StepPlan FullPlan() {
  StepPlan plan;
  plan.id = StepId{3};
  plan.dropped_swaps = {SwapId{1}};
  plan.swap_outs.emplace_back();
  plan.transfers_out = {{BlockId{1}, HostBlockId{2}}};
  plan.released = {SequenceSlot{1}};
  plan.starts.emplace_back().info = Info("a", "");
  plan.transfers_in = {{BlockId{1}, HostBlockId{2}}};
  plan.start_tokens = {7, 8};
  plan.dropped_regions = {RegionId{1}};
  plan.copies.emplace_back();
  plan.slots = {SequenceSlot{0}};
  plan.positions = {0};
  plan.num_tokens = {2};
  plan.samples = {0};
  plan.num_drafts = {0};
  plan.block_offsets = {0, 1};
  plan.blocks = {BlockId{5}};
  plan.evictions.emplace_back();
  plan.evictions[0].shard_page_totals = {4, 4};
  plan.evictions[0].budgets = std::make_shared<std::vector<int32_t>>(2, 3);
  plan.evictions[0].scores = std::make_shared<std::vector<float>>(2, 0.5F);
  plan.destinations = {BlockId{7}};
  return plan;
}

std::vector<Change> ChangesOfStarts() {
  const auto change = [](auto set) -> Change {
    return [set](StepPlan* plan) { set(&plan->starts[0]); };
  };
  return {
      change([](SequenceStart* start) { start->slot = SequenceSlot{9}; }),
      change([](SequenceStart* start) { start->request = RequestId{9}; }),
      change([](SequenceStart* start) { start->token_begin = 9; }),
      change([](SequenceStart* start) { start->num_tokens = 9; }),
      change([](SequenceStart* start) { start->num_cached_tokens = 9; }),
      change([](SequenceStart* start) { start->source = SequenceSlot{9}; }),
      change([](SequenceStart* start) { start->region = RegionId{9}; }),
      change([](SequenceStart* start) { start->swap = SwapId{9}; }),
      change([](SequenceStart* start) { start->transfer_begin = 9; }),
      change([](SequenceStart* start) { start->num_transfers = 9; }),
      change([](SequenceStart* start) { start->query_window = 9; }),
      change([](SequenceStart* start) {
        start->scorer_state = ScorerState::kAttentionSums;
      }),
      change([](SequenceStart* start) { start->state_begin = 9; }),
      change([](SequenceStart* start) { start->info = Info("a", "b"); }),
      change([](SequenceStart* start) { start->info = Info("ab", ""); }),
  };
}

std::vector<Change> ChangesOfOrders() {
  const auto change = [](auto set) -> Change {
    return [set](StepPlan* plan) { set(&plan->evictions[0]); };
  };
  return {
      change([](EvictionOrder* order) { order->slot = SequenceSlot{9}; }),
      change([](EvictionOrder* order) { order->cut = 9; }),
      change([](EvictionOrder* order) { order->length = 9; }),
      change([](EvictionOrder* order) { order->policy.scorer.window = 9; }),
      change([](EvictionOrder* order) {
        order->policy.budget.kind = BudgetKind::kAdaKv;
      }),
      change([](EvictionOrder* order) { order->policy.protect.sinks = 9; }),
      change([](EvictionOrder* order) {
        order->target.kind = EvictionTarget::Kind::kTokens;
      }),
      change([](EvictionOrder* order) { order->target.tokens = 9; }),
      change([](EvictionOrder* order) {
        order->target.ratio = {1, 10};
      }),
      change([](EvictionOrder* order) { order->destination_begin = 9; }),
      change([](EvictionOrder* order) { order->num_destinations = 9; }),
      change([](EvictionOrder* order) { order->page_total = 9; }),
      change([](EvictionOrder* order) { order->shard_page_totals[1] = 9; }),
      change([](EvictionOrder* order) { order->region = RegionId{9}; }),
      change([](EvictionOrder* order) {
        order->budgets = std::make_shared<std::vector<int32_t>>(2, 9);
      }),
      change([](EvictionOrder* order) {
        order->scores = std::make_shared<std::vector<float>>(2, 9.0F);
      }),
  };
}

std::vector<Change> ChangesOfMoves() {
  return {
      [](StepPlan* plan) { plan->dropped_swaps[0] = SwapId{9}; },
      [](StepPlan* plan) { plan->swap_outs[0].slot = SequenceSlot{9}; },
      [](StepPlan* plan) { plan->swap_outs[0].swap = SwapId{9}; },
      [](StepPlan* plan) { plan->swap_outs[0].num_tokens = 9; },
      [](StepPlan* plan) { plan->swap_outs[0].transfer_begin = 9; },
      [](StepPlan* plan) { plan->swap_outs[0].num_transfers = 9; },
      [](StepPlan* plan) { plan->transfers_out[0].block = BlockId{9}; },
      [](StepPlan* plan) { plan->transfers_out[0].host = HostBlockId{9}; },
      [](StepPlan* plan) { plan->transfers_in[0].block = BlockId{9}; },
      [](StepPlan* plan) { plan->transfers_in[0].host = HostBlockId{9}; },
      [](StepPlan* plan) { plan->dropped_regions[0] = RegionId{9}; },
      [](StepPlan* plan) { plan->copies[0].slot = SequenceSlot{9}; },
      [](StepPlan* plan) { plan->copies[0].blocks.source = BlockId{9}; },
      [](StepPlan* plan) { plan->copies[0].blocks.destination = BlockId{9}; },
      [](StepPlan* plan) { plan->copies[0].num_tokens = 9; },
      [](StepPlan* plan) { plan->copies[0].group = 9; },
  };
}

std::vector<Change> ChangesOfRuns() {
  return {
      [](StepPlan* plan) { plan->id = StepId{9}; },
      [](StepPlan* plan) { plan->released[0] = SequenceSlot{9}; },
      [](StepPlan* plan) { plan->start_tokens[1] = 9; },
      [](StepPlan* plan) { plan->slots[0] = SequenceSlot{9}; },
      [](StepPlan* plan) { plan->positions[0] = 9; },
      [](StepPlan* plan) { plan->num_tokens[0] = 9; },
      [](StepPlan* plan) { plan->samples[0] = 1; },
      [](StepPlan* plan) { plan->num_drafts[0] = 9; },
      [](StepPlan* plan) { plan->num_drafts.clear(); },
      [](StepPlan* plan) { plan->block_offsets[1] = 9; },
      [](StepPlan* plan) { plan->blocks[0] = BlockId{9}; },
      [](StepPlan* plan) { plan->destinations[0] = BlockId{9}; },
      // What was the end of one list is the beginning of the next.
      [](StepPlan* plan) {
        plan->positions = {0, 2};
        plan->num_tokens.clear();
      },
  };
}

TEST(PlanTraceTest, TellsPlansApartThatDifferInAnything) {
  const auto hash = [](const StepPlan& plan) {
    Report report;
    MixPlan(plan, &report);
    return report.hash();
  };
  std::set<uint64_t> seen = {hash(FullPlan())};
  EXPECT_TRUE(seen.contains(hash(FullPlan())));
  for (const auto& changes : {ChangesOfRuns(), ChangesOfStarts(),
                              ChangesOfMoves(), ChangesOfOrders()}) {
    for (size_t i = 0; i < changes.size(); ++i) {
      StepPlan plan = FullPlan();
      changes[i](&plan);
      EXPECT_TRUE(seen.insert(hash(plan)).second) << "change " << i;
    }
  }
}

}  // namespace
}  // namespace blockmgr::sim
