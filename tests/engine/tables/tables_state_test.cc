#include "engine/tables/tables_state.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/tables/tables_fixture.h"
#include "tests/engine/tables/tables_state_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(TablesStateTest, KnowsItsSlotsAndBlocks) {
  EXPECT_OK(state_.CheckSlot("slot", SequenceSlot{7}));
  EXPECT_THAT(state_.CheckSlot("slot", SequenceSlot{8}),
              IsRefused("slot: expected a slot in [0, 8), got 8"));
  EXPECT_THAT(state_.CheckSlot("slot", SequenceSlot{-1}), IsRefused("got -1"));
  EXPECT_TRUE(state_.IsInUse(kTestSlot));
  EXPECT_FALSE(state_.IsInUse(SequenceSlot{2}));
  EXPECT_FALSE(state_.IsInUse(SequenceSlot{7}));
  EXPECT_TRUE(state_.IsBlock(BlockId{63}));
  EXPECT_FALSE(state_.IsBlock(BlockId{64}));
  EXPECT_FALSE(state_.IsBlock(kNullBlock));
}

TEST_F(TablesStateTest, WhatAGroupNeedsFollowsFromItsKind) {
  const TableRegion region = Region(32, 40, 30);
  EXPECT_EQ(state_.LeastTokens(region, 0), 32);
  EXPECT_EQ(state_.LeastTokens(region, 1), 40);
  EXPECT_TRUE(state_.IsAttended(region, 0, 60));
  EXPECT_TRUE(state_.IsAttended(region, 1, 51));
  EXPECT_FALSE(state_.IsAttended(region, 1, 52));
  EXPECT_EQ(state_.CountPages(0, 60, 32), 2);
  EXPECT_EQ(state_.CountPages(0, 60, 0), 4);
  EXPECT_EQ(state_.CountPages(1, 60, 0), 2);
}

TEST_F(TablesStateTest, RegionsOfALengthAreThoseInTheWindow) {
  Evict(0, 30);
  Evict(1, 31);
  const SequenceTable& row = state_.row(kTestSlot);
  const auto cuts = [&](int32_t length) {
    std::vector<int32_t> found;
    for (const TableRegion& region : state_.RegionsAt(row, length)) {
      found.push_back(region.cut);
    }
    return found;
  };
  EXPECT_THAT(cuts(40), ElementsAre(32, 32));
  EXPECT_THAT(cuts(52), ElementsAre(32, 0));
}

TEST_F(TablesStateTest, ANameGivesASequenceFromTheHostFullGroupsOnly) {
  constexpr RegionId kName{5};
  constexpr SwapId kSwap{6};
  state_.regions[kName] = {Region(32, 40, 30), Region(32, 40, 31)};
  state_.swapped[kSwap].regions = {Region(32, 40, 40), Region(16, 40, 41)};
  SequenceStart start{.num_cached_tokens = 40, .region = kName};
  const std::vector<TableRegion>& named = state_.regions.at(kName);
  EXPECT_EQ(state_.TakenRegion(start, 0), &named[0]);
  EXPECT_EQ(state_.TakenRegion(start, 1), &named[1]);
  start.num_cached_tokens = 52;  // behind the window
  EXPECT_EQ(state_.NamedRegion(start, 1), &named[1]);
  EXPECT_EQ(state_.TakenRegion(start, 1), nullptr);
  start.num_cached_tokens = 35;
  start.swap = kSwap;
  const std::vector<TableRegion>& own = state_.swapped.at(kSwap).regions;
  EXPECT_EQ(state_.TakenRegion(start, 0), &named[0]);
  EXPECT_EQ(state_.NamedRegion(start, 1), nullptr);
  EXPECT_EQ(state_.TakenRegion(start, 1), &own[1]);
  start.region = kNoRegion;
  EXPECT_EQ(state_.TakenRegion(start, 0), &own[0]);
  start.swap = kNoSwap;
  EXPECT_EQ(state_.TakenRegion(start, 0), nullptr);
}

TEST_F(TablesStateTest, AnOrderCoversTheRegionAndWhatIsInTheWindow) {
  Evict(0, 30);
  EvictionOrder order;
  order.slot = kTestSlot;
  order.cut = 32;
  order.length = 40;
  CoveredTail covered = state_.Covered(order);
  EXPECT_EQ(covered.region, &state_.group_of(kTestSlot, 0).region);
  EXPECT_EQ(covered.begin, 32);
  EXPECT_THAT(covered.blocks, IsEmpty());
  EXPECT_EQ(state_.CountHeldBelow(order, 3), 2);
  order.group = 1;
  covered = state_.Covered(order);
  EXPECT_EQ(covered.region, nullptr);
  EXPECT_EQ(covered.begin, 16);
  EXPECT_THAT(covered.blocks, ElementsAre(BlockId{12}));
  EXPECT_EQ(state_.CountHeldBelow(order, 3), 16);
}

TEST_F(TablesStateTest, WhatIsCommittedHoldsForOneStep) {
  EXPECT_EQ(state_.CommittedOf(kTestSlot).next_group, 0);
  state_.num_steps = 4;
  state_.committed.resize(4);
  state_.committed.back() = {.step = 4, .next_group = 1, .name = RegionId{5}};
  EXPECT_EQ(state_.CommittedOf(kTestSlot).next_group, 1);
  EXPECT_EQ(state_.CommittedOf(kTestSlot).name, RegionId{5});
  ++state_.num_steps;
  EXPECT_EQ(state_.CommittedOf(kTestSlot).next_group, 0);
  EXPECT_EQ(state_.CommittedOf(kTestSlot).name, kNoRegion);
}

TEST_F(TablesStateTest, ResetForgetsAll) {
  state_.swapped[SwapId{6}];
  state_.regions[RegionId{5}];
  state_.host_holders[1] = SwapId{6};
  state_.Reset();
  EXPECT_FALSE(state_.IsInUse(kTestSlot));
  EXPECT_THAT(state_.swapped, IsEmpty());
  EXPECT_THAT(state_.regions, IsEmpty());
  EXPECT_THAT(state_.host_holders, Each(kNoSwap));
}

}  // namespace
}  // namespace blockmgr
