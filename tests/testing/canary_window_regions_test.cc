// The canary must die of wrong evictions from layer groups with windows, too.

#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/canary_plans.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// Pages of 2 tokens, and a group with a window of 8. Slot 0 has computed 12 of
// 20 tokens, on blocks 1 to 6 and 11 to 16, when it is evicted from: the next
// token attends to those from 5 on.
class CanaryWindowRegionsTest : public CanaryTest {
 protected:
  CanaryWindowRegionsTest() : CanaryTest(0, {8}) {}

  // On new blocks with numbers from these on.
  static void AddPages(int32_t slot, int32_t position, int32_t num_tokens,
                       int32_t first_block, int32_t first_window_block,
                       StepPlan* plan) {
    const int32_t num_pages =
        (position + num_tokens + 1) / 2 - (position + 1) / 2;
    AddRun(
        slot, position, num_tokens,
        {Count(first_block, num_pages), Count(first_window_block, num_pages)},
        false, plan);
  }
  static std::vector<int32_t> Count(int32_t first, int32_t count) {
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
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
    StepPlan plan = EmptyPlan(1);
    AddStart(0, Count(0, 20), 0, &plan);
    AddPages(0, 0, 12, 1, 11, &plan);
    AddOrder(0, 12, 20, &plan);
    AddOrder(1, 12, destination, &plan);
    return plan;
  }
  // Tokens after those.
  static StepPlan More(int32_t num_tokens) {
    StepPlan plan = EmptyPlan(2);
    AddPages(0, 12, num_tokens, 7, 17, &plan);
    return plan;
  }
  // Another sequence, on this block of the window group.
  static StepPlan Other(int32_t block) {
    StepPlan plan = EmptyPlan(9);
    AddStart(1, Count(0, 3), 0, &plan);
    AddPages(1, 0, 2, 30, block, &plan);
    return plan;
  }
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
    StepPlan plan = EmptyPlan(11);
    AddStart(1, Count(0, 20), num_cached, &plan).region = RegionId{name};
    AddPages(1, num_cached, 2, 34, 35, &plan);
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
  StepPlan more = EmptyPlan(12);
  AddPages(1, 14, 2, 36, 37, &more);
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
