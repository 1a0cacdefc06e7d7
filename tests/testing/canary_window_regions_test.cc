// The canary must die of wrong evictions from layer groups with windows, too.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/canary_engine.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// Pages of 2 tokens, and a group with a window of 8. Slot 0 has computed 12 of
// 20 tokens, on blocks 1 to 6 and 11 to 16, when it is evicted from: the next
// token attends to those from 5 on.
class CanaryWindowRegionsTest : public testing::Test {
 protected:
  CanaryWindowRegionsTest()
      : engine_({.num_layers = 2,
                 .num_heads = 2,
                 .num_q_heads = 2,
                 .head_dim = 8,
                 .page_size = 2,
                 .dtype = DType::kFloat32,
                 .num_blocks = 40,
                 .group_windows = {8}},
                4, {}) {}

  absl::Status Run(const StepPlan& plan) {
    const absl::Status status = engine_.Enqueue(plan);
    return status.ok() ? engine_.Execute().status() : status;
  }
  static StepPlan PlanOf(uint64_t id) {
    StepPlan plan;
    plan.id = StepId{id};
    plan.block_offsets = {0};
    return plan;
  }
  static void AddRun(int32_t slot, int32_t position, int32_t num_tokens,
                     int32_t first_block, int32_t first_window_block,
                     StepPlan* plan) {
    plan->slots.push_back(SequenceSlot{slot});
    plan->positions.push_back(position);
    plan->num_tokens.push_back(num_tokens);
    plan->samples.push_back(0);
    const int32_t num_pages =
        (position + num_tokens + 1) / 2 - (position + 1) / 2;
    for (const int32_t first : {first_block, first_window_block}) {
      for (int32_t i = 0; i < num_pages; ++i) {
        plan->blocks.push_back(BlockId{first + i});
      }
      plan->block_offsets.push_back(std::ssize(plan->blocks));
    }
  }
  static SequenceStart& AddStart(int32_t slot, int32_t num_tokens,
                                 StepPlan* plan) {
    for (int32_t i = 0; i < num_tokens; ++i) plan->start_tokens.push_back(i);
    plan->starts.push_back({.slot = SequenceSlot{slot},
                            .request = RequestId{100},
                            .token_begin = 0,
                            .num_tokens = num_tokens});
    return plan->starts.back();
  }
  // Two entries per head.
  static void AddOrder(int32_t group, int32_t length, int32_t destination,
                       StepPlan* plan) {
    EvictionOrder order;
    order.slot = SequenceSlot{0};
    order.group = group;
    order.cut = length - 2;
    order.length = length;
    order.policy.scorer.kind = ScorerKind::kStreaming;
    order.policy.scorer.sinks = 0;
    order.target.kind = EvictionTarget::Kind::kTokens;
    order.target.tokens = 2;
    order.destination_begin = std::ssize(plan->destinations);
    order.num_destinations = 1;
    order.page_total = 4;
    plan->evictions.push_back(order);
    plan->destinations.push_back(BlockId{destination});
  }
  static StepPlan WithOrders(int32_t destination) {
    StepPlan plan = PlanOf(1);
    AddStart(0, 20, &plan);
    AddRun(0, 0, 12, 1, 11, &plan);
    AddOrder(0, 12, 20, &plan);
    AddOrder(1, 12, destination, &plan);
    return plan;
  }
  // Tokens after those.
  static StepPlan More(int32_t num_tokens) {
    StepPlan plan = PlanOf(2);
    AddRun(0, 12, num_tokens, 7, 17, &plan);
    return plan;
  }
  // Another sequence, on this block of the window group.
  static StepPlan Other(int32_t block) {
    StepPlan plan = PlanOf(9);
    AddStart(1, 3, &plan);
    AddRun(1, 0, 2, 30, block, &plan);
    return plan;
  }

  CanaryEngine engine_;
};

TEST_F(CanaryWindowRegionsTest, WhatIsEvictedMayBeOfAnother) {
  for (const int32_t block : {11, 12, 13, 14, 15}) {
    engine_.Restart();
    ASSERT_OK(Run(WithOrders(21)));
    ASSERT_OK(Run(Other(block)));
    StepPlan more = More(1);
    more.id = StepId{10};
    EXPECT_OK(Run(more));
  }
  for (const int32_t block : {16, 20, 21}) {
    engine_.Restart();
    ASSERT_OK(Run(WithOrders(21)));
    EXPECT_THAT(Run(Other(block)), StatusIs(absl::StatusCode::kInternal,
                                            HasSubstr("in a table already")));
  }
}

TEST_F(CanaryWindowRegionsTest, ARegionIsReadUntilItsCutFallsOut) {
  // After 16 tokens the next one attends to 9, after 17 to 10.
  for (const int32_t num_tokens : {4, 5}) {
    engine_.Restart();
    ASSERT_OK(Run(WithOrders(21)));
    ASSERT_OK(Run(More(num_tokens)));
    EXPECT_EQ(Run(Other(21)).ok(), num_tokens == 5);
  }
}

TEST_F(CanaryWindowRegionsTest, NoticesWrongOrders) {
  const std::vector<std::pair<const char*, std::function<void(EvictionOrder*)>>>
      cases = {
          {"has page total 5",
           [](EvictionOrder* order) { order->page_total = 5; }},
          // All that there is.
          {"destinations for 1 blocks",
           [](EvictionOrder* order) { order->cut = 6; }},
      };
  for (const auto& [message, spoil] : cases) {
    engine_.Restart();
    StepPlan plan = WithOrders(21);
    spoil(&plan.evictions[1]);
    EXPECT_THAT(Run(plan),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(message)));
  }
}

TEST_F(CanaryWindowRegionsTest, IsDamagedByTheLossOfARegion) {
  ASSERT_OK(Run(WithOrders(21)));
  engine_.LoseBlocks({BlockId{21}});
  ASSERT_OK(Run(More(1)));
  EXPECT_TRUE(engine_.IsDamaged(SequenceSlot{0}));
}

// The name of group 0's region is 7: for whoever has the same tokens.
class CanaryKeptRegionsTest : public CanaryWindowRegionsTest {
 protected:
  static StepPlan Named(StepPlan plan, uint64_t name) {
    plan.evictions.front().region = RegionId{name};
    return plan;
  }
  // Slot 1 starts behind so many tokens on blocks of both groups, and computes
  // two tokens on blocks of its own, 34 and 35.
  static StepPlan StartOn(uint64_t name, int32_t num_cached,
                          std::vector<int32_t> blocks,
                          std::vector<int32_t> window_blocks) {
    StepPlan plan = PlanOf(11);
    SequenceStart& start = AddStart(1, 20, &plan);
    start.request = RequestId{101};
    start.num_cached_tokens = num_cached;
    start.region = RegionId{name};
    AddRun(1, num_cached, 2, 34, 35, &plan);
    blocks.push_back(34);
    blocks.insert(blocks.end(), window_blocks.begin(), window_blocks.end());
    blocks.push_back(35);
    plan.blocks.clear();
    for (const int32_t block : blocks) plan.blocks.push_back(BlockId{block});
    plan.block_offsets = {0, std::ssize(blocks) - std::ssize(window_blocks) - 1,
                          std::ssize(blocks)};
    return plan;
  }
  static StepPlan StartOn12() { return StartOn(7, 12, {6}, {16}); }
  static StepPlan ReleaseFirst() {
    StepPlan plan = Other(22);
    plan.released = {SequenceSlot{0}};
    plan.starts[0].slot = SequenceSlot{3};
    plan.slots[0] = SequenceSlot{3};
    return plan;
  }
};

TEST_F(CanaryKeptRegionsTest, NoticesWrongTables) {
  const std::vector<std::pair<const char*, StepPlan>> cases = {
      {"expected request 101", StartOn(7, 12, {6}, {17})},
      {"expected num_cached_tokens to be at least 12", StartOn(7, 10, {}, {})},
  };
  for (const auto& [message, plan] : cases) {
    engine_.Restart();
    ASSERT_OK(Run(Named(WithOrders(21), 7)));
    EXPECT_THAT(Run(plan),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(message)));
  }
}

TEST_F(CanaryKeptRegionsTest, BlocksOfGroup0AreNobodyElsesUntilTheyAreDropped) {
  for (const bool is_dropped : {false, true}) {
    engine_.Restart();
    ASSERT_OK(Run(Named(WithOrders(21), 7)));
    StepPlan release = ReleaseFirst();
    if (is_dropped) release.dropped_regions = {RegionId{7}};
    ASSERT_OK(Run(release));
    StepPlan other = Other(33);
    other.id = StepId{10};
    other.blocks[0] = BlockId{20};
    EXPECT_EQ(Run(other).ok(), is_dropped);
  }
}

// Those of windows may be given to others while the name is kept: whoever needs
// them then is noticed.
TEST_F(CanaryKeptRegionsTest, NoticesAStartOnARegionThatIsAnothers) {
  ASSERT_OK(Run(Named(WithOrders(21), 7)));
  ASSERT_OK(Run(ReleaseFirst()));
  StepPlan other = Other(21);
  other.id = StepId{10};
  other.blocks[0] = BlockId{31};
  ASSERT_OK(Run(other));
  StepPlan start = StartOn12();
  start.id = StepId{11};
  start.released = {SequenceSlot{1}};
  EXPECT_THAT(Run(start), StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("group 1 head 0 position 5")));
}

TEST_F(CanaryKeptRegionsTest, NoticesEvictionsToWhatOthersStartedOn) {
  ASSERT_OK(Run(Named(WithOrders(21), 7)));
  ASSERT_OK(Run(StartOn12()));
  // Slot 1 evicts, in place, what slot 0 attends to as well.
  StepPlan more = PlanOf(12);
  AddRun(1, 14, 2, 36, 37, &more);
  for (const int32_t group : {0, 1}) {
    AddOrder(group, 16, group == 0 ? 24 : 21, &more);
    more.evictions.back().slot = SequenceSlot{1};
  }
  EXPECT_THAT(Run(more), StatusIs(absl::StatusCode::kInternal,
                                  HasSubstr("21 is in other tables")));
}

TEST_F(CanaryKeptRegionsTest, ARefusedOrderLeavesNothing) {
  engine_.RefuseOrders(true);
  ASSERT_OK(Run(Named(WithOrders(21), 7)));
  EXPECT_THAT(Run(StartOn12()),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("expected a region that is kept, got 7")));
}

}  // namespace
}  // namespace blockmgr
