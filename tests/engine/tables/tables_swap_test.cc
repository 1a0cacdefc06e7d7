// Sequences that leave for host memory and come back.

#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr SwapId kTableSwap{4};

class EngineTablesSwapTest : public AnyTablesTest {
 protected:
  EngineTablesSwapTest() : AnyTablesTest(EngineTables(kTablesLayout, 8, 6)) {
    EXPECT_OK(tables_.Apply(StartPlan()));
    tables_.AddSampled(kTestSlot, 9);
  }

  static BlockTransfer Transfer(int32_t block, int32_t host) {
    return {.block = BlockId{block}, .host = HostBlockId{host}};
  }

  // kTestSlot's 40 tokens leave for host blocks 5, 0 and 3.
  static StepPlan LeavePlan() {
    StepPlan plan;
    plan.swap_outs = {{.slot = kTestSlot,
                       .swap = kTableSwap,
                       .num_tokens = 40,
                       .num_transfers = 3}};
    plan.transfers_out = {Transfer(1, 5), Transfer(2, 0), Transfer(3, 3)};
    plan.released = {kTestSlot};
    return plan;
  }
  // 36 of them come back to slot 2: to blocks 21 and 22, behind block 1.
  static StepPlan ReturnPlan() {
    StepPlan plan;
    plan.starts = {{.slot = SequenceSlot{2},
                    .request = RequestId{7},
                    .num_tokens = 41,
                    .num_cached_tokens = 36,
                    .swap = kTableSwap,
                    .num_transfers = 2}};
    plan.start_tokens.assign(41, 5);
    plan.start_tokens.back() = 9;
    plan.transfers_in = {Transfer(21, 0), Transfer(22, 3)};
    plan.slots = {SequenceSlot{2}};
    plan.positions = {36};
    plan.num_tokens = {5};
    plan.samples = {1};
    plan.block_offsets = {0, 3};
    plan.blocks = {BlockId{1}, BlockId{21}, BlockId{22}};
    return plan;
  }
};

TEST_F(EngineTablesSwapTest, ASequenceLeavesAndComesBack) {
  ASSERT_OK(tables_.Apply(LeavePlan()));
  EXPECT_FALSE(tables_.row(kTestSlot).in_use);
  ASSERT_OK(tables_.Apply(ReturnPlan()));
  const SequenceTable& row = tables_.row(SequenceSlot{2});
  EXPECT_EQ(row.num_computed, 41);
  EXPECT_THAT(row.tokens, SizeIs(41));
  EXPECT_THAT(row.groups[0].blocks,
              ElementsAre(BlockId{1}, BlockId{21}, BlockId{22}));
  // It is forgotten, and so is what it held.
  ExpectRefused(ReturnPlan(), "expected one that was swapped out",
                [](StepPlan* plan) {
                  plan->starts[0].slot = SequenceSlot{4};
                  plan->slots = {SequenceSlot{4}};
                });
  StepPlan again = LeavePlan();
  again.swap_outs[0].slot = SequenceSlot{2};
  again.swap_outs[0].swap = SwapId{5};
  again.released = {SequenceSlot{2}};
  again.transfers_out = {Transfer(1, 5), Transfer(21, 0), Transfer(22, 3)};
  EXPECT_OK(tables_.Apply(again));
}

TEST_F(EngineTablesSwapTest, ARegionComesBackToOtherBlocks) {
  const StepPlan eviction = EvictionPlan();
  ASSERT_OK(tables_.Apply(eviction));
  tables_.Commit(eviction, eviction.evictions[0],
                 std::vector<int32_t>{16, 3, 0, 16});
  StepPlan leave = LeavePlan();
  leave.swap_outs[0].num_tokens = 41;
  leave.swap_outs[0].num_transfers = 2;
  leave.transfers_out = {Transfer(10, 5), Transfer(3, 0)};
  ASSERT_OK(tables_.Apply(leave));
  StepPlan plan = ReturnPlan();
  plan.starts[0].num_cached_tokens = 40;
  plan.positions = {40};
  plan.num_tokens = {1};
  plan.transfers_in = {Transfer(30, 5), Transfer(21, 0)};
  plan.block_offsets = {0, 1};
  plan.blocks = {BlockId{21}};
  ASSERT_OK(tables_.Apply(plan));
  const SequenceTable& row = tables_.row(SequenceSlot{2});
  const TableRegion& region = row.groups[0].region;
  EXPECT_EQ(region.cut, 32);
  EXPECT_THAT(region.blocks, ElementsAre(BlockId{30}));
  EXPECT_THAT(region.kept, ElementsAre(16, 3, 0, 16));
  EXPECT_THAT(region.shard_entries, ElementsAre(35));
  EXPECT_THAT(row.groups[0].blocks, ElementsAre(BlockId{21}));
  EXPECT_EQ(row.num_computed, 41);
}

TEST_F(EngineTablesSwapTest, ADroppedOneMakesRoomInTheSamePlan) {
  ASSERT_OK(tables_.Apply(LeavePlan()));
  ASSERT_OK(tables_.Apply(StartPlan()));
  StepPlan plan = LeavePlan();
  plan.swap_outs[0].swap = SwapId{5};
  ExpectRefused(plan, "expected free host blocks");
  plan.dropped_swaps = {kTableSwap};
  EXPECT_OK(tables_.Apply(plan));
  EXPECT_FALSE(tables_.row(kTestSlot).in_use);
}

TEST_F(EngineTablesSwapTest, RefusesWhatCannotLeave) {
  const auto refuse = [this](const char* message,
                             const std::function<void(SwapOut*)>& spoil) {
    ExpectRefused(LeavePlan(), message,
                  [&](StepPlan* plan) { spoil(&plan->swap_outs[0]); });
  };
  refuse("expected a slot in [0, 8), got 8",
         [](SwapOut* out) { out->slot = SequenceSlot{8}; });
  refuse("expected a slot in use that is released, once, got 2",
         [](SwapOut* out) { out->slot = SequenceSlot{2}; });
  refuse("not in use", [](SwapOut* out) { out->swap = kNoSwap; });
  refuse("expected 1 to 40 tokens", [](SwapOut* out) { out->num_tokens = 0; });
  refuse("(of slot 3), got 41", [](SwapOut* out) { out->num_tokens = 41; });
  refuse("expected at least 3 out of 3 transfers",
         [](SwapOut* out) { out->num_transfers = 4; });
  refuse("expected at least 3 out of 3 transfers",
         [](SwapOut* out) { out->num_transfers = 2; });
  ExpectRefused(LeavePlan(), "that is released",
                [](StepPlan* plan) { plan->released.clear(); });
  ExpectRefused(
      LeavePlan(), "expected block 2 of group 0, got 3",
      [](StepPlan* plan) { plan->transfers_out[1].block = BlockId{3}; });
  ExpectRefused(
      LeavePlan(), "expected host blocks below 6, got 6",
      [](StepPlan* plan) { plan->transfers_out[1].host = HostBlockId{6}; });
  ExpectRefused(
      LeavePlan(), "expected free host blocks, each once, got 5",
      [](StepPlan* plan) { plan->transfers_out[1].host = HostBlockId{5}; });
  ExpectRefused(
      LeavePlan(), "expected block 1 of group 0, got 9", [](StepPlan* plan) {
        plan->swap_outs[0].num_transfers = 4;
        plan->transfers_out.insert(plan->transfers_out.begin(), Transfer(9, 1));
      });
  ExpectRefused(LeavePlan(), "plan.dropped_swaps of swap 4",
                [](StepPlan* plan) { plan->dropped_swaps = {kTableSwap}; });
  EXPECT_THAT(tables_.row(kTestSlot).groups[0].blocks, SizeIs(3));
  EXPECT_OK(tables_.Apply(LeavePlan()));
}

TEST_F(EngineTablesSwapTest, RefusesWhatCannotComeBack) {
  ASSERT_OK(tables_.Apply(LeavePlan()));
  const auto refuse = [this](const char* message, const Spoil& spoil) {
    ExpectRefused(ReturnPlan(), message, spoil);
  };
  refuse("plan.starts of swap 5: expected one that was swapped out",
         [](StepPlan* plan) { plan->starts[0].swap = SwapId{5}; });
  refuse("expected one that was swapped out",
         [](StepPlan* plan) { plan->dropped_swaps = {kTableSwap}; });
  refuse("expected num_cached_tokens in [1, 40], got 0",
         [](StepPlan* plan) { plan->starts[0].num_cached_tokens = 0; });
  refuse("expected the first 36 tokens to be its own",
         [](StepPlan* plan) { plan->start_tokens[35] = 6; });
  refuse("expected 0 to 3 out of 2 transfers",
         [](StepPlan* plan) { plan->starts[0].num_transfers = 4; });
  refuse("expected 0 to 3 out of 2 transfers",
         [](StepPlan* plan) { plan->starts[0].transfer_begin = 1; });
  refuse("expected a copy of host block 0",
         [](StepPlan* plan) { plan->transfers_in[0].host = HostBlockId{5}; });
  refuse("to a block in [1, 64), got of 0 to 64",
         [](StepPlan* plan) { plan->transfers_in[0].block = BlockId{64}; });
  refuse("expected a copy to block 21 of its run, group 0, got 23",
         [](StepPlan* plan) { plan->transfers_in[0].block = BlockId{23}; });
  EXPECT_OK(tables_.Apply(ReturnPlan()));
}

TEST_F(EngineTablesSwapTest, AnEngineWithoutHostBlocksTakesNobody) {
  EngineTables tables(kTablesLayout, 8);
  ASSERT_OK(tables.Apply(StartPlan()));
  EXPECT_THAT(tables.Apply(LeavePlan()),
              IsRefused("expected host blocks below 0"));
}

TEST_F(EngineTablesSwapTest, ANewAttachmentHoldsNothing) {
  ASSERT_OK(tables_.Apply(LeavePlan()));
  tables_.Reset();
  // The daemon counts from the beginning: this name has been there before.
  StepPlan plan = LeavePlan();
  ASSERT_OK(tables_.Apply(StartPlan()));
  plan.swap_outs[0].num_tokens = 16;
  plan.swap_outs[0].num_transfers = 1;
  plan.transfers_out = {Transfer(1, 1)};
  ASSERT_OK(tables_.Apply(plan));
  ASSERT_OK(tables_.Apply(StartPlan()));
  plan = LeavePlan();
  plan.swap_outs[0].swap = SwapId{5};
  EXPECT_OK(tables_.Apply(plan));
}

}  // namespace
}  // namespace blockmgr
