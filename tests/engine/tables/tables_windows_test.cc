// Block tables of several groups, and of a model with a window.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_windows_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr BlockId kNone = kNullBlock;
constexpr SequenceSlot kOther{4};
constexpr SwapId kWindowSwap{5};

TEST_F(EngineTablesWindowsTest, AllTablesGrowInStep) {
  ComputeAll();
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Blocks(11, 5), Blocks(21, 5)));
  ASSERT_OK(tables_.Apply(Decode(1, {{}, {}, {}})));
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Blocks(11, 5), Blocks(21, 5)));
  tables_.AddSampled(kTestSlot, 9);
  StepPlan leave;
  leave.released = {kTestSlot};
  ASSERT_OK(tables_.Apply(leave));
  EXPECT_THAT(Tables(kTestSlot), Each(IsEmpty()));
}

TEST_F(EngineTablesWindowsTest, ACachedStartLeavesOutWhatNoWindowReaches) {
  ASSERT_OK(tables_.Apply(
      StartRun(kTestSlot, 64, 6,
               {{1, 2, 3, 4, 5}, {0, 0, 13, 14, 15}, {0, 22, 23, 24, 25}})));
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Ids({0, 0, 13, 14, 15}),
                          Ids({0, 22, 23, 24, 25})));
}

TEST_F(EngineTablesWindowsTest, RefusesStartsWithOtherPages) {
  const StepPlan plan =
      StartRun(kTestSlot, 64, 6,
               {{1, 2, 3, 4, 5}, {0, 0, 13, 14, 15}, {0, 22, 23, 24, 25}});
  ExpectRefused(
      plan,
      "plan.blocks of slot 3, group 1: expected no block for page 1, got 12",
      [](StepPlan* p) { p->blocks[6] = BlockId{12}; });
  ExpectRefused(
      plan,
      "plan.blocks of slot 3, group 2: expected a block for page 1, got 0",
      [](StepPlan* p) { p->blocks[11] = kNone; });
  ExpectRefused(
      plan,
      "group 1: expected blocks for positions below 70, got blocks for "
      "positions below 64",
      [](StepPlan* p) { p->block_offsets[2] = 9; });
  ExpectRefused(
      plan,
      "group 2: expected blocks for positions below 80, as in group 0, got "
      "blocks for positions below 96",
      [](StepPlan* p) {
        p->blocks.push_back(BlockId{26});
        ++p->block_offsets[3];
      });
  ExpectRefused(
      plan,
      "plan.blocks of slot 3, group 0: expected a block for page 0, got 0",
      [](StepPlan* p) { p->blocks[0] = kNone; });
}

TEST_F(EngineTablesWindowsTest, RefusesArraysThatDoNotFit) {
  const StepPlan plan =
      StartRun(kTestSlot, 0, 40, {{1, 2, 3}, {11, 12, 13}, {21, 22, 23}});
  ExpectRefused(plan, "plan.block_offsets: expected 4 elements, got 3",
                [](StepPlan* p) { p->block_offsets.pop_back(); });
  ExpectRefused(plan,
                "plan.block_offsets: expected ascending offsets from 0 to 9",
                [](StepPlan* p) { p->block_offsets[2] = 10; });
  ExpectRefused(plan, "plan.blocks: expected block ids in [1, 64), got 64",
                [](StepPlan* p) { p->blocks[5] = BlockId{64}; });
  EngineTables plain(kTablesLayout, 8);
  EXPECT_THAT(plain.Apply(plan),
              IsRefused("plan.block_offsets: expected 2 elements, "
                        "got 4"));
}

TEST_F(EngineTablesWindowsTest, RunsThatGoOnAddWhatTheTailDoes) {
  ComputeAll();
  ExpectRefused(
      Decode(1, {{}, {}, {26}}),
      "group 2: expected blocks for positions below 80, as in group 0");
  ExpectRefused(Decode(1, {{6}, {16}, {0}}),
                "group 2: expected a block for page 5, got 0");
}

TEST_F(EngineTablesWindowsTest, RejectedDraftsLeaveNoPages) {
  ComputeAll();
  tables_.SetDrafts(kTestSlot, std::vector<int32_t>(12, 3));
  StepPlan plan = Decode(13, {{6}, {16}, {26}});
  plan.num_drafts = {12};
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 6), Blocks(11, 6), Blocks(21, 6)));
  tables_.RejectDrafts(kTestSlot, 12, 9);
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Blocks(11, 5), Blocks(21, 5)));
}

// A sequence of the first 69 tokens and one more.
StepPlan WindowsForkPlan() {
  StepPlan plan = RunPlan(kOther, 69, 1, {{}, {}, {}});
  plan.starts = {{.slot = kOther,
                  .request = RequestId{8},
                  .num_tokens = 70,
                  .num_cached_tokens = 69,
                  .source = kTestSlot}};
  plan.start_tokens.assign(70, 5);
  for (int32_t group = 0; group < 3; ++group) {
    plan.copies.push_back(
        {.slot = kOther,
         .blocks = {BlockId{5 + 10 * group}, BlockId{50 + group}},
         .num_tokens = 5,
         .group = group});
  }
  return plan;
}

TEST_F(EngineTablesWindowsTest, AForkSharesEveryTableAndCopiesEveryLastBlock) {
  ComputeAll();
  ASSERT_OK(tables_.Apply(WindowsForkPlan()));
  EXPECT_THAT(Tables(kOther),
              ElementsAre(Ids({1, 2, 3, 4, 50}), Ids({11, 12, 13, 14, 51}),
                          Ids({21, 22, 23, 24, 52})));
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(1, 5), Blocks(11, 5), Blocks(21, 5)));
}

TEST_F(EngineTablesWindowsTest, RefusesCopiesOfSomeGroups) {
  ComputeAll();
  ExpectRefused(
      WindowsForkPlan(),
      "plan.copies of slot 4: expected a copy for each of 3 layer groups, got "
      "2",
      [](StepPlan* p) { p->copies.pop_back(); });
  ExpectRefused(WindowsForkPlan(), "in order, got group 2",
                [](StepPlan* p) { p->copies[1].group = 2; });
  ExpectRefused(WindowsForkPlan(),
                "once for each of 3 layer groups, in order, got group 3",
                [](StepPlan* p) {
                  p->copies.push_back(p->copies[2]);
                  p->copies[3].group = 3;
                });
  ExpectRefused(WindowsForkPlan(),
                "expected its last block 15 as source, got 14",
                [](StepPlan* p) { p->copies[1].blocks.source = BlockId{14}; });
}

TEST_F(EngineTablesWindowsTest, RefusesASourceWithoutThePagesNeeded) {
  ASSERT_OK(tables_.Apply(
      StartRun(kTestSlot, 64, 6,
               {{1, 2, 3, 4, 5}, {0, 0, 13, 14, 15}, {0, 22, 23, 24, 25}})));
  StepPlan plan = WindowsForkPlan();
  plan.copies.clear();
  plan.starts[0].num_cached_tokens = 48;
  plan.positions = {48};
  ExpectRefused(
      plan,
      "expected a source that has what 48 tokens need, got slot 3 without "
      "page 1 of group 1");
}

TEST_F(EngineTablesWindowsTest, RefusesPartsOfCachedBlocks) {
  StepPlan plan =
      StartRun(kTestSlot, 40, 30,
               {{1, 2, 3, 4, 5}, {0, 12, 13, 14, 15}, {21, 22, 23, 24, 25}});
  for (int32_t group = 0; group < 3; ++group) {
    plan.copies.push_back({.slot = kTestSlot,
                           .blocks = {BlockId{40}, BlockId{3 + 10 * group}},
                           .num_tokens = 8,
                           .group = group});
  }
  ExpectRefused(plan, "expected a tail, got none");
}

// kTestSlot leaves with 70 tokens: five pages, two and four.
StepPlan WindowsLeavePlan() {
  StepPlan plan;
  plan.swap_outs = {{.slot = kTestSlot,
                     .swap = kWindowSwap,
                     .num_tokens = 70,
                     .num_transfers = 11}};
  int32_t host = 0;
  for (const int32_t block : {1, 2, 3, 4, 5, 14, 15, 22, 23, 24, 25}) {
    plan.transfers_out.push_back({BlockId{block}, HostBlockId{host++}});
  }
  plan.released = {kTestSlot};
  return plan;
}

// It comes back behind two cached blocks of group 0.
StepPlan WindowsReturnPlan() {
  StepPlan plan =
      RunPlan(kOther, 70, 1,
              {{1, 2, 33, 34, 35}, {0, 0, 0, 44, 45}, {0, 52, 53, 54, 55}});
  plan.samples = {1};
  plan.starts = {{.slot = kOther,
                  .request = RequestId{7},
                  .num_tokens = 71,
                  .num_cached_tokens = 70,
                  .swap = kWindowSwap,
                  .num_transfers = 9}};
  plan.start_tokens.assign(70, 5);
  plan.start_tokens.push_back(9);
  int32_t host = 2;
  for (const int32_t block : {33, 34, 35, 44, 45, 52, 53, 54, 55}) {
    plan.transfers_in.push_back({BlockId{block}, HostBlockId{host++}});
  }
  return plan;
}

TEST_F(EngineTablesWindowsTest, WindowsLeaveAndComeBack) {
  ComputeAll();
  ASSERT_OK(tables_.Apply(WindowsLeavePlan()));
  ASSERT_OK(tables_.Apply(WindowsReturnPlan()));
  EXPECT_THAT(Tables(kOther),
              ElementsAre(Ids({1, 2, 33, 34, 35}), Ids({0, 0, 0, 44, 45}),
                          Ids({0, 52, 53, 54, 55})));
}

TEST_F(EngineTablesWindowsTest, RefusesSwapsOfOtherPages) {
  ComputeAll();
  ExpectRefused(
      WindowsLeavePlan(),
      "plan.swap_outs of swap 5: expected block 14 of group 1, got 13",
      [](StepPlan* p) { p->transfers_out[5].block = BlockId{13}; });
  ExpectRefused(WindowsLeavePlan(), "expected at least 11 out of 11 transfers",
                [](StepPlan* p) { p->swap_outs[0].num_transfers = 10; });
  ASSERT_OK(tables_.Apply(WindowsLeavePlan()));
  ExpectRefused(WindowsReturnPlan(), "expected a copy of host block 6",
                [](StepPlan* p) { p->transfers_in[4].host = HostBlockId{5}; });
  ExpectRefused(WindowsReturnPlan(),
                "expected a copy to block 55 of its run, group 2, got 56",
                [](StepPlan* p) { p->transfers_in[8].block = BlockId{56}; });
  ExpectRefused(WindowsReturnPlan(), "expected 6 to 11 out of 9 transfers",
                [](StepPlan* p) { p->starts[0].num_transfers = 5; });
  ExpectRefused(
      WindowsReturnPlan(),
      "expected num_cached_tokens whose first page in group 1 is 3, as swapped "
      "out, got 67",
      [](StepPlan* p) { p->starts[0].num_cached_tokens = 67; });
}

TEST_F(EngineTablesWindowsTest, ADestinationIsNoLiveBlockOfAWindow) {
  ComputeAll();
  StepPlan plan = Decode(1, {{}, {}, {}});
  EvictionOrder& order = plan.evictions.emplace_back();
  order.slot = kTestSlot;
  order.cut = 64;
  order.length = 71;
  order.num_destinations = 1;
  order.page_total = 4;
  order.policy.scorer.kind = ScorerKind::kStreaming;
  ASSERT_OK(tables_.Apply(plan));
  plan.destinations = Blocks(14, 1);
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("block 14 is named twice or holds tokens that stay"));
  // Three pages of the group of 20 tokens are behind.
  plan.destinations = Blocks(13, 1);
  ASSERT_OK(tables_.CheckOrder(plan, plan.evictions[0]));
  tables_.Commit(plan, plan.evictions[0], std::vector<int32_t>(4, 16));
  EXPECT_THAT(Tables(kTestSlot),
              ElementsAre(Blocks(5, 1), Blocks(11, 5), Blocks(21, 5)));
}

// The only group of layers has a window of 20 tokens.
class EngineTablesWindowTest : public ::testing::Test {
 protected:
  EngineTablesWindowTest() : tables_(Windowed(20, {}), 8, 16) {
    EXPECT_OK(tables_.Apply(StartRun(kTestSlot, 64, 6, {{0, 0, 3, 4, 5}})));
    tables_.AddSampled(kTestSlot, 9);
  }
  EngineTables tables_;
};

TEST_F(EngineTablesWindowTest, TheTailBeginsWithPagesLeftOut) {
  ASSERT_THAT(tables_.row(kTestSlot).groups, SizeIs(1));
  EXPECT_EQ(tables_.row(kTestSlot).groups[0].blocks, Ids({0, 0, 3, 4, 5}));
  StepPlan plan = StartRun(kOther, 64, 6, {{0, 0, 0, 4, 5}});
  EXPECT_THAT(tables_.Apply(plan),
              IsRefused("plan.blocks of slot 4, group 0: expected a "
                        "block for page 2, got 0"));
}

TEST_F(EngineTablesWindowTest, NothingIsEvicted) {
  StepPlan plan = RunPlan(kTestSlot, 70, 1, {{}});
  plan.samples = {1};
  EvictionOrder& order = plan.evictions.emplace_back();
  order.slot = kTestSlot;
  order.cut = 64;
  order.length = 71;
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_THAT(tables_.CheckOrder(plan, order),
              IsRefused("expected no order in a model with a window, "
                        "got 64"));
}

TEST_F(EngineTablesWindowTest, OnlyTheWindowLeavesAndComesBack) {
  StepPlan leave;
  leave.swap_outs = {{.slot = kTestSlot,
                      .swap = kWindowSwap,
                      .num_tokens = 70,
                      .num_transfers = 2}};
  leave.transfers_out = {{BlockId{4}, HostBlockId{1}},
                         {BlockId{5}, HostBlockId{0}}};
  leave.released = {kTestSlot};
  ASSERT_OK(tables_.Apply(leave));
  StepPlan plan = RunPlan(kOther, 70, 1, {{0, 0, 0, 4, 9}});
  plan.samples = {1};
  plan.starts = {{.slot = kOther,
                  .request = RequestId{7},
                  .num_tokens = 71,
                  .num_cached_tokens = 70,
                  .swap = kWindowSwap,
                  .num_transfers = 1}};
  plan.start_tokens.assign(70, 5);
  plan.start_tokens.push_back(9);
  plan.transfers_in = {{BlockId{9}, HostBlockId{1}}};
  EXPECT_THAT(tables_.Apply(plan),
              IsRefused("expected a copy of host block 0"));
  plan.transfers_in[0].host = HostBlockId{0};
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_EQ(tables_.row(kOther).groups[0].blocks, Ids({0, 0, 0, 4, 9}));
}

}  // namespace
}  // namespace blockmgr
