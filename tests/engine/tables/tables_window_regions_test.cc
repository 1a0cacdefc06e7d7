// Regions of window groups, as tables have them.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_windows_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsNull;
using ::testing::NotNull;

TEST_F(EngineTablesWindowRegionsTest, EveryGroupHasItsOwn) {
  const StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  // Of the last token's window only: from page 3 on, and from page 1 on.
  EXPECT_EQ(tables_.CountHeldBelow(plan.evictions[0], 0), 64);
  EXPECT_EQ(tables_.CountHeldBelow(plan.evictions[1], 0), 16);
  EXPECT_EQ(tables_.CountHeldBelow(plan.evictions[2], 0), 48);
  CommitAll(plan, {16, 3, 0, 16});
  for (const int32_t group : {0, 1, 2}) {
    const TableRegion* const region = Attended(static_cast<size_t>(group));
    ASSERT_THAT(region, NotNull());
    EXPECT_EQ(region->cut, 64);
    EXPECT_EQ(region->length, 71);
    EXPECT_THAT(region->blocks, ElementsAre(BlockId{30 + group}));
    EXPECT_THAT(region->kept, ElementsAre(16, 3, 0, 16));
  }
  EXPECT_THAT(Tables(kTestSlot), ElementsAre(Ids({5}), Ids({15}), Ids({25})));
}

TEST_F(EngineTablesWindowRegionsTest, OneGroupMayHaveOneAlone) {
  StepPlan plan = OrdersPlan();
  plan.evictions = {OrderIn(2, 2)};
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {1, 2, 3, 4});
  EXPECT_THAT(Attended(0), IsNull());
  EXPECT_THAT(Attended(1), IsNull());
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Blocks(11, 5), Ids({25})));
}

// Into the host tier, group by group: the region's block, and the page behind.
class EngineTablesSwappedRegionsTest : public EngineTablesWindowRegionsTest {
 protected:
  EngineTablesSwappedRegionsTest() {
    const StepPlan plan = OrdersPlan();
    EXPECT_OK(tables_.Apply(plan));
    CommitAll(plan, {16, 3, 0, 16});
    tables_.AddSampled(kTestSlot, 9);
    tokens_ = row().tokens;
  }

  static StepPlan LeavePlan() {
    StepPlan plan;
    plan.block_offsets = {0};
    plan.released = {kTestSlot};
    plan.swap_outs = {{.slot = kTestSlot,
                       .swap = SwapId{5},
                       .num_tokens = 71,
                       .num_transfers = 6}};
    int32_t host = 0;
    for (const BlockId block : Ids({30, 5, 31, 15, 32, 25})) {
      plan.transfers_out.push_back({block, HostBlockId{host++}});
    }
    return plan;
  }
  StepPlan ReturnPlan() const {
    StepPlan plan = RunPlan(kTestSlot, 71, 1, {{41}, {43}, {45}});
    plan.samples = {1};
    plan.start_tokens = tokens_;
    plan.starts = {{.slot = kTestSlot,
                    .request = RequestId{7},
                    .num_tokens = 72,
                    .num_cached_tokens = 71,
                    .swap = SwapId{5},
                    .num_transfers = 6}};
    int32_t host = 0;
    for (const BlockId block : Blocks(40, 6)) {
      plan.transfers_in.push_back({block, HostBlockId{host++}});
    }
    return plan;
  }

  std::vector<int32_t> tokens_;
};

TEST_F(EngineTablesSwappedRegionsTest, LeaveAndComeBack) {
  ASSERT_OK(tables_.Apply(LeavePlan()));
  ASSERT_OK(tables_.Apply(ReturnPlan()));
  for (const int32_t group : {0, 1, 2}) {
    const TableRegion* const region = Attended(static_cast<size_t>(group));
    ASSERT_THAT(region, NotNull());
    EXPECT_EQ(region->cut, 64);
    EXPECT_EQ(region->length, 71);
    EXPECT_THAT(region->blocks, ElementsAre(BlockId{40 + 2 * group}));
    EXPECT_THAT(region->kept, ElementsAre(16, 3, 0, 16));
  }
  EXPECT_THAT(Tables(kTestSlot), ElementsAre(Ids({41}), Ids({43}), Ids({45})));
}

TEST_F(EngineTablesSwappedRegionsTest, RefusesOthers) {
  ExpectRefused(LeavePlan(), "expected blocks of its region, in order, got 33",
                [](StepPlan* p) { p->transfers_out[2].block = BlockId{33}; });
  ExpectRefused(LeavePlan(), "expected blocks of its region, in order, got 14",
                [](StepPlan* p) { p->transfers_out[3].block = BlockId{14}; });
  ExpectRefused(LeavePlan(), "got 33 behind them", [](StepPlan* p) {
    p->transfers_out.push_back({BlockId{33}, HostBlockId{9}});
    p->swap_outs[0].num_transfers = 7;
  });
  ASSERT_OK(tables_.Apply(LeavePlan()));
  ExpectRefused(ReturnPlan(), "expected a copy of host block 2",
                [](StepPlan* p) { p->transfers_in[2].host = HostBlockId{3}; });
  ExpectRefused(ReturnPlan(),
                "expected a copy to block 43 of its run, group 1, got 46",
                [](StepPlan* p) { p->transfers_in[3].block = BlockId{46}; });
  ExpectRefused(
      ReturnPlan(),
      "group 2: expected blocks for positions below 80, as in group 0",
      [](StepPlan* p) {
        p->blocks.push_back(BlockId{46});
        ++p->block_offsets[3];
      });
  ExpectRefused(ReturnPlan(), "expected num_cached_tokens in [71, 71], got 70",
                [](StepPlan* p) { p->starts[0].num_cached_tokens = 70; });
  EXPECT_OK(tables_.Apply(ReturnPlan()));
}

TEST_F(EngineTablesWindowRegionsTest, IsPastWhenItsCutHasFallenOut) {
  const StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {16, 3, 0, 16});
  // The token at position 82 attends to 63, the next one does not.
  DecodeTo(83);
  EXPECT_THAT(Attended(1), NotNull());
  DecodeTo(84);
  EXPECT_THAT(Attended(1), IsNull());
  EXPECT_THAT(Attended(2), NotNull());
  DecodeTo(112);
  EXPECT_THAT(Attended(2), IsNull());
}

TEST_F(EngineTablesWindowRegionsTest, TheNextOneIsMadeOfTheLastAndTheTail) {
  StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {16, 3, 0, 16});
  DecodeTo(99);
  tables_.AddSampled(kTestSlot, 9);
  EvictionOrder order = OrderIn(2, 2);
  order.cut = 96;
  order.length = 99;
  // What is behind the cut of 64, and at most what the last one kept.
  EXPECT_EQ(tables_.CountHeldBelow(order, 0), 16 + 32);
  EXPECT_EQ(tables_.CountHeldBelow(order, 2), 32);
  // Nothing is left of the other.
  order.group = 1;
  EXPECT_EQ(tables_.CountHeldBelow(order, 0), 16);
}

TEST_F(EngineTablesWindowRegionsTest, ASequenceGoesBackToItsLengthAtMost) {
  const StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {16, 3, 0, 16});
  DecodeTo(84);
  tables_.AddSampled(kTestSlot, 9);
  const auto again = [](int32_t num_cached) {
    StepPlan restart = RunPlan(
        kTestSlot, num_cached, 85 - num_cached,
        num_cached > 80 ? std::vector<std::vector<int32_t>>{{}, {}, {}}
                        : std::vector<std::vector<int32_t>>{{50}, {51}, {52}});
    restart.samples = {1};
    restart.starts = {{.slot = kTestSlot,
                       .request = RequestId{7},
                       .num_tokens = 85,
                       .num_cached_tokens = num_cached,
                       .source = kTestSlot}};
    restart.start_tokens.assign(70, 5);
    restart.start_tokens.resize(85, 9);
    return restart;
  };
  EXPECT_THAT(tables_.Apply(again(70)),
              IsRefused("expected at least the 71 tokens of the region "
                        "of group 1 in slot 3, got 70"));
  // It has been past, and is not any more.
  EXPECT_THAT(Attended(1), IsNull());
  ASSERT_OK(tables_.Apply(again(76)));
  ASSERT_THAT(Attended(1), NotNull());
  EXPECT_EQ(Attended(1)->cut, 64);
}

TEST_F(EngineTablesWindowRegionsTest, RefusesOrdersOutOfTurn) {
  const StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {16, 3, 0, 16});
  for (const int32_t group : {0, 1, 2}) {
    EXPECT_THAT(tables_.CheckOrder(plan, OrderIn(group, group)),
                IsRefused("a second order for slot 3 in one step"));
  }
}

TEST_F(EngineTablesWindowRegionsTest, RefusesBadOrders) {
  for (const int32_t group : {-1, 3}) {
    ExpectOrderRefused(
        1, "group: expected 0 to 2, got ",
        [=](StepPlan*, EvictionOrder* order) { order->group = group; });
  }
  ExpectOrderRefused(
      1, "region: expected none of a group with a window, got 3",
      [](StepPlan*, EvictionOrder* order) { order->region = RegionId{3}; });
  ExpectOrderRefused(
      1, "cut: expected one above 52, from which on the group attends, got 48",
      [](StepPlan*, EvictionOrder* order) { order->cut = 48; });
  ExpectOrderRefused(2, "cut: expected one above 24",
                     [](StepPlan*, EvictionOrder* order) { order->cut = 16; });
  ExpectOrderRefused(
      1,
      "policy: expected scores and budgets of what a group with a window has",
      [](StepPlan*, EvictionOrder* order) {
        order->policy.scorer.kind = ScorerKind::kExternal;
      });
  ExpectOrderRefused(
      1,
      "policy: expected scores and budgets of what a group with a window has",
      [](StepPlan*, EvictionOrder* order) {
        order->policy.scorer.kind = ScorerKind::kH2o;
      });
}

TEST_F(EngineTablesWindowRegionsTest, DestinationsAreNoBlocksThatStay) {
  const auto to = [](int32_t block) {
    return [block](StepPlan* plan, EvictionOrder*) {
      plan->destinations[1] = BlockId{block};
    };
  };
  // Of the tail, of another group, and its own behind the cut.
  for (const int32_t block : {1, 24, 15}) {
    ExpectOrderRefused(1, "is named twice or holds tokens that stay",
                       to(block));
  }
  // Below the cut they are its own, and what has fallen out is nobody's.
  for (const int32_t block : {13, 14, 21}) {
    StepPlan plan = OrdersPlan();
    to(block)(&plan, nullptr);
    EngineTables tables = tables_;
    ASSERT_OK(tables.Apply(plan));
    EXPECT_OK(tables.CheckOrder(plan, plan.evictions[1])) << block;
  }
}

TEST_F(EngineTablesWindowRegionsTest, CountsAreOfWhatIsInTheWindow) {
  const StepPlan plan = OrdersPlan();
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_THAT(
      tables_.CheckCounts(plan.evictions[1], std::vector<int32_t>{17, 0, 0, 0}),
      IsRefused("at most 16 entries for head index 0, got 17"));
  EXPECT_OK(tables_.CheckCounts(plan.evictions[2],
                                std::vector<int32_t>{48, 0, 0, 16}));
}

}  // namespace
}  // namespace blockmgr
