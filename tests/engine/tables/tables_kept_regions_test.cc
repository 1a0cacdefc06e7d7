// Regions of window groups that are kept by the name of group 0's, and the
// sequences that start on them.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_windows_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::NotNull;

constexpr SequenceSlot kStarter{1};
constexpr RegionId kKeptName{8};

// A step that evicts from every group at a length of 71 and keeps the regions,
// on blocks 30, 31 and 32, by a name.
class EngineTablesKeptRegionsTest : public EngineTablesWindowRegionsTest {
 protected:
  static StepPlan NamedPlan() {
    StepPlan plan = OrdersPlan();
    plan.evictions[0].region = kKeptName;
    return plan;
  }
  void KeepAll() {
    const StepPlan plan = NamedPlan();
    ASSERT_OK(tables_.Apply(plan));
    CommitAll(plan, {16, 3, 0, 16});
  }
  // Orders for what is computed now, in these groups, up to a cut, on blocks 60
  // and so on; the first is of group 0 and has a name.
  void KeepMore(const std::vector<int32_t>& groups, int32_t cut,
                RegionId region) {
    const int32_t length = row().num_computed + 1;
    tables_.AddSampled(kTestSlot, 9);
    StepPlan plan = RunPlan(kTestSlot, length - 1, 1, {{}, {}, {}});
    plan.samples = {1};
    plan.destinations = Blocks(60, 3);
    for (const int32_t group : groups) {
      plan.evictions.push_back(OrderIn(group, group));
      plan.evictions.back().cut = cut;
      plan.evictions.back().length = length;
    }
    plan.evictions.front().region = region;
    ASSERT_OK(tables_.Apply(plan));
    CommitAll(plan, {2, 2, 2, 2});
  }
  // A sequence that starts in kStarter behind so many tokens, and computes 16.
  static StepPlan StartOn(int32_t num_cached,
                          const std::vector<std::vector<int32_t>>& blocks,
                          RegionId region = kKeptName) {
    StepPlan plan = StartRun(kStarter, num_cached, 16, blocks);
    plan.samples = {0};
    plan.starts[0].num_tokens = 160;
    plan.starts[0].region = region;
    plan.start_tokens.assign(160, 5);
    return plan;
  }
  // What is read of both groups then: from pages 3 and 2 on.
  static StepPlan StartOn80() {
    return StartOn(80, {{5, 50}, {15, 51}, {25, 52}});
  }
  // Of a group of kStarter.
  const TableRegion& Other(size_t group) {
    return tables_.row(kStarter).groups[group].region;
  }
};

TEST_F(EngineTablesKeptRegionsTest, AStartTakesWhatItsWindowsReach) {
  KeepAll();
  ASSERT_OK(tables_.Apply(StartOn80()));
  for (const int32_t group : {0, 1, 2}) {
    const TableRegion& region = Other(static_cast<size_t>(group));
    EXPECT_EQ(region.cut, 64);
    EXPECT_EQ(region.length, 71);
    EXPECT_THAT(region.blocks, ElementsAre(BlockId{30 + group}));
    EXPECT_THAT(region.kept, ElementsAre(16, 3, 0, 16));
  }
  EXPECT_THAT(Tables(kStarter),
              ElementsAre(Ids({5, 50}), Ids({15, 51}), Ids({25, 52})));
  // So does who made them.
  ASSERT_THAT(Attended(1), NotNull());
  EXPECT_THAT(Attended(1)->blocks, ElementsAre(BlockId{31}));
}

TEST_F(EngineTablesKeptRegionsTest, WhatTheWindowHasPassedIsNotTaken) {
  KeepAll();
  // From page 4 on in the first group, from page 3 on in the second.
  ASSERT_OK(tables_.Apply(
      StartOn(96, {{5, 40, 50}, {0, 0, 0, 0, 15, 41, 51}, {25, 42, 52}})));
  EXPECT_EQ(Other(1).cut, 0);
  EXPECT_THAT(Other(2).blocks, ElementsAre(BlockId{32}));
  // From pages 5 and 4 on.
  StepPlan plan = StartOn(112, {{5, 40, 43, 50},
                                {0, 0, 0, 0, 0, 41, 44, 51},
                                {0, 0, 0, 0, 25, 42, 45, 52}});
  plan.released = {kStarter};
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_EQ(Other(0).cut, 64);
  EXPECT_EQ(Other(1).cut, 0);
  EXPECT_EQ(Other(2).cut, 0);
}

TEST_F(EngineTablesKeptRegionsTest, RefusesTablesThatSayOtherwise) {
  KeepAll();
  ExpectRefused(StartOn80(),
                "of slot 1, group 1: expected a block for page 4, got 0",
                [](StepPlan* p) { p->blocks[2] = kNullBlock; });
  // Below the cut of a region that it takes there is nothing.
  ExpectRefused(
      StartOn(80, {{5, 50}, {14, 15, 51}, {25, 52}}),
      "of slot 1, group 1: expected blocks for positions below 96, as in "
      "group 0");
  // Without the name all that the window reaches is in blocks.
  ExpectRefused(
      StartOn(
          80,
          {{1, 2, 3, 4, 5, 50}, {0, 0, 0, 0, 15, 51}, {0, 0, 23, 24, 25, 52}},
          kNoRegion),
      "of slot 1, group 1: expected a block for page 3, got 0");
  ExpectRefused(StartOn80(),
                "at least 71 (of the sequence that made region 8), got 64",
                [](StepPlan* p) { p->starts[0].num_cached_tokens = 64; });
  EXPECT_OK(tables_.Apply(StartOn80()));
}

TEST_F(EngineTablesKeptRegionsTest, TheNameStandsForTheLastOfEveryGroup) {
  KeepAll();
  DecodeTo(85);
  // In group 1 with an order of its own, in group 2 with what it has.
  KeepMore({0, 1}, 80, RegionId{9});
  ASSERT_OK(tables_.Apply(
      StartOn(96, {{40, 50}, {41, 51}, {25, 42, 52}}, RegionId{9})));
  EXPECT_EQ(Other(0).cut, 80);
  EXPECT_THAT(Other(0).blocks, ElementsAre(BlockId{60}));
  EXPECT_EQ(Other(1).cut, 80);
  EXPECT_EQ(Other(1).length, 86);
  EXPECT_THAT(Other(1).blocks, ElementsAre(BlockId{61}));
  EXPECT_EQ(Other(2).cut, 64);
  EXPECT_EQ(Other(2).length, 71);
  EXPECT_THAT(Other(2).blocks, ElementsAre(BlockId{32}));
  // The name before stands for what it did.
  StepPlan start = StartOn80();
  start.released = {kStarter};
  ASSERT_OK(tables_.Apply(start));
  EXPECT_EQ(Other(0).cut, 64);
  EXPECT_THAT(Other(1).blocks, ElementsAre(BlockId{31}));
}

TEST_F(EngineTablesKeptRegionsTest, WhatWasPastIsNotKept) {
  KeepAll();
  DecodeTo(84);
  KeepMore({0, 2}, 80, RegionId{9});
  // Of group 1 there is none, though there was one before.
  ASSERT_OK(tables_.Apply(StartOn(
      96, {{40, 50}, {0, 0, 0, 0, 15, 41, 51}, {42, 52}}, RegionId{9})));
  EXPECT_EQ(Other(1).cut, 0);
  EXPECT_EQ(Other(2).cut, 80);
}

TEST_F(EngineTablesKeptRegionsTest, IsMadeBeforeOrAfterByNoOtherStep) {
  // One after the order of group 0, but not in its step.
  StepPlan plan = NamedPlan();
  plan.evictions.resize(1);
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {2, 2, 2, 2});
  EXPECT_EQ(tables_.KeptName(kTestSlot), kKeptName);
  ASSERT_OK(
      tables_.Apply(StartRun(SequenceSlot{2}, 0, 16, {{50}, {51}, {52}})));
  EXPECT_EQ(tables_.KeptName(kTestSlot), kNoRegion);
  tables_.AddSampled(kTestSlot, 9);
  plan = RunPlan(kTestSlot, 71, 1, {{}, {}, {}});
  plan.samples = {1};
  for (const int32_t group : {1, 2}) {
    plan.evictions.push_back(OrderIn(group, group));
    plan.evictions.back().length = 72;
  }
  plan.destinations = Blocks(33, 3);
  ASSERT_OK(tables_.Apply(plan));
  CommitAll(plan, {2, 2, 2, 2});
  EXPECT_EQ(tables_.KeptName(kTestSlot), kNoRegion);
  ASSERT_OK(tables_.Apply(
      StartOn(80, {{5, 53}, {0, 0, 0, 14, 15, 54}, {0, 0, 23, 24, 25, 55}})));
  EXPECT_EQ(Other(1).cut, 0);
  EXPECT_EQ(Other(2).cut, 0);
}

// One that fails has made nothing, whatever becomes of the name.
TEST_F(EngineTablesKeptRegionsTest, OnlyOrdersThatAreCarriedOutAreKept) {
  const StepPlan plan = NamedPlan();
  ASSERT_OK(tables_.Apply(plan));
  for (const int32_t group : {0, 2}) {
    const EvictionOrder& order = plan.evictions[static_cast<size_t>(group)];
    ASSERT_OK(tables_.CheckOrder(plan, order));
    tables_.Commit(plan, order, std::vector<int32_t>{2, 2, 2, 2});
  }
  ASSERT_OK(
      tables_.Apply(StartOn(80, {{5, 50}, {0, 0, 0, 14, 15, 51}, {25, 52}})));
  EXPECT_EQ(Other(1).cut, 0);
  EXPECT_EQ(Other(2).cut, 64);
}

TEST_F(EngineTablesKeptRegionsTest, ANameInUseStandsForNothingElse) {
  KeepAll();
  tables_.AddSampled(kTestSlot, 9);
  StepPlan plan = RunPlan(kTestSlot, 71, 1, {{}, {}, {}});
  plan.samples = {1};
  plan.evictions = {OrderIn(0, 0), OrderIn(1, 1)};
  for (EvictionOrder& order : plan.evictions) order.length = 72;
  plan.evictions[0].region = kKeptName;
  plan.destinations = Blocks(60, 2);
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("expected a name that is not in use, got 8"));
  ASSERT_OK(tables_.CheckOrder(plan, plan.evictions[1]));
  tables_.Commit(plan, plan.evictions[1], std::vector<int32_t>{2, 2, 2, 2});
  ASSERT_OK(tables_.Apply(StartOn80()));
  EXPECT_THAT(Other(1).blocks, ElementsAre(BlockId{31}));
}

TEST_F(EngineTablesKeptRegionsTest, GoesWithItsName) {
  KeepAll();
  StepPlan last = StartOn80();
  last.dropped_regions = {kKeptName};  // after the starts
  ASSERT_OK(tables_.Apply(last));
  EXPECT_EQ(Other(1).cut, 64);
  StepPlan late = StartOn80();
  late.released = {kStarter};
  EXPECT_THAT(tables_.Apply(late),
              IsRefused("expected a region that is kept, got 8"));
}

// Of what comes back only group 0's region is shared.
TEST_F(EngineTablesKeptRegionsTest, WhatComesBackBringsItsOwn) {
  KeepAll();
  DecodeTo(81);
  tables_.AddSampled(kTestSlot, 9);
  const std::vector<int32_t> tokens = row().tokens;
  // Its region, its tail, and the same of both windows.
  const std::vector<BlockId> blocks = Ids({30, 5, 40, 31, 15, 41, 32, 25, 42});
  StepPlan out;
  out.block_offsets = {0};
  out.released = {kTestSlot};
  out.swap_outs = {{.slot = kTestSlot,
                    .swap = SwapId{5},
                    .num_tokens = 81,
                    .num_transfers = 9}};
  for (int32_t i = 0; i < 9; ++i) {
    out.transfers_out.push_back(
        {blocks[static_cast<size_t>(i)], HostBlockId{i}});
  }
  ASSERT_OK(tables_.Apply(out));
  // All but the region, and the page behind it, which is cached.
  StepPlan in = RunPlan(kStarter, 81, 1, {{5, 50}, {52, 53}, {55, 56}});
  in.samples = {1};
  in.start_tokens = tokens;
  in.starts = {{.slot = kStarter,
                .request = RequestId{7},
                .num_tokens = 82,
                .num_cached_tokens = 81,
                .region = kKeptName,
                .swap = SwapId{5},
                .num_transfers = 7}};
  for (int32_t i = 0; i < 7; ++i) {
    in.transfers_in.push_back(Transfer(50 + i, 2 + i));
  }
  ASSERT_OK(tables_.Apply(in));
  EXPECT_THAT(Other(0).blocks, ElementsAre(BlockId{30}));
  EXPECT_EQ(Tables(kStarter)[0], Ids({5, 50}));
  EXPECT_THAT(Other(1).blocks, ElementsAre(BlockId{51}));
  EXPECT_THAT(Other(2).blocks, ElementsAre(BlockId{54}));
  EXPECT_EQ(Other(2).length, 71);
}

// Who has started on them goes on as if they were its own.
TEST_F(EngineTablesKeptRegionsTest, AreForkedAndSwappedOutAndEvictedFrom) {
  KeepAll();
  ASSERT_OK(tables_.Apply(StartOn80()));
  // A fork of the start, at its last token.
  StepPlan fork = StartOn(96, {{53}, {54}, {55}});
  fork.starts[0].slot = SequenceSlot{2};
  fork.starts[0].source = kStarter;
  fork.starts[0].region = kNoRegion;
  fork.slots = {SequenceSlot{2}};
  ASSERT_OK(tables_.Apply(fork));
  EXPECT_THAT(tables_.row(SequenceSlot{2}).groups[2].region.blocks,
              ElementsAre(BlockId{32}));
  // An eviction of what is left of its windows.
  StepPlan more = RunPlan(kStarter, 96, 16, {{56}, {57}, {58}});
  for (const int32_t group : {0, 1, 2}) {
    EvictionOrder& order = more.evictions.emplace_back(OrderIn(group, group));
    order.slot = kStarter;
    order.cut = 96;
    order.length = 112;
  }
  more.evictions[0].region = RegionId{9};
  more.destinations = Blocks(60, 3);
  ASSERT_OK(tables_.Apply(more));
  // From position 65 on, which is behind the region.
  EXPECT_EQ(tables_.CountHeldBelow(more.evictions[2], 1), 32);
  CommitAll(more, {2, 2, 2, 2});
  // And out: the regions as they are now.
  StepPlan out;
  out.block_offsets = {0};
  out.released = {kStarter};
  out.swap_outs = {{.slot = kStarter,
                    .swap = SwapId{5},
                    .num_tokens = 112,
                    .num_transfers = 6}};
  int32_t host = 0;
  for (const BlockId block : Ids({60, 56, 61, 57, 62, 58})) {
    out.transfers_out.push_back({block, HostBlockId{host++}});
  }
  ASSERT_OK(tables_.Apply(out));
  // The name still stands for what it did.
  ASSERT_OK(tables_.Apply(StartOn80()));
  EXPECT_THAT(Other(1).blocks, ElementsAre(BlockId{31}));
  EXPECT_THAT(Other(2).kept, ElementsAre(16, 3, 0, 16));
}

}  // namespace
}  // namespace blockmgr
