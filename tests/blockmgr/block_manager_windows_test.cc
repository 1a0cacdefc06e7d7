#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/block_tables.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::SizeIs;
using BlockManagerWindowsTest = WindowsTest;

TEST_F(BlockManagerWindowsTest, FirstPageLeavesWhatTheLastTokenNeedsAgain) {
  const ModelLayout layout = TwoByTwo(50, 0, {8, 12});
  EXPECT_EQ(layout.FirstPage(0, 1000), 0);
  EXPECT_EQ(layout.FirstPage(1, 8), 0);
  // The query at position 11 attends to positions 4 to 11.
  EXPECT_EQ(layout.FirstPage(1, 11), 0);
  EXPECT_EQ(layout.FirstPage(1, 12), 1);
  EXPECT_EQ(layout.FirstPage(2, 15), 0);
  EXPECT_EQ(layout.FirstPage(2, 16), 1);
}

TEST_F(BlockManagerWindowsTest, EveryGroupGrowsAndOnlySettledTokensLeaveIt) {
  Make(TwoByTwo(60, 0, {8, 12}), 0, false);
  const std::vector<int32_t> tokens = Prompt(1, 40);
  const SequenceSlot slot = manager_->Open(Chain(tokens), {});
  EXPECT_EQ(manager_->BlocksNeeded(slot, 16), 12);
  ASSERT_TRUE(Reserve(slot, 16));
  manager_->Dispatch(StepId{1});
  ASSERT_TRUE(Reserve(slot, 16));
  manager_->Dispatch(StepId{2});
  manager_->CheckInvariants();
  // 32 positions are reserved, and none has left: none is settled.
  EXPECT_EQ(manager_->NumBlocks(slot), 24);
  EXPECT_EQ(manager_->CountFalling(slot).num_own, 6 + 5);
  Commit(slot, tokens, 16);
  EXPECT_EQ(manager_->sequence(slot).groups[1].block(0), kNullBlock);
  EXPECT_EQ(manager_->sequence(slot).groups[1].block(1), kNullBlock);
  EXPECT_EQ(NumHeld(slot, 1), 6);
  EXPECT_EQ(NumHeld(slot, 2), 7);
  // The step in flight may read none of them, but the fence does not ask.
  EXPECT_EQ(manager_->num_fenced(), 3);
  manager_->Acknowledge(StepId{1});
  manager_->Acknowledge(StepId{2});
  EXPECT_EQ(manager_->num_fenced(), 0);
  Commit(slot, tokens, 16);
  EXPECT_EQ(NumHeld(slot, 1), 2);
  EXPECT_EQ(NumHeld(slot, 2), 3);
  EXPECT_EQ(manager_->num_available(), 59 - 8 - 2 - 3);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 59);
}

TEST_F(BlockManagerWindowsTest, HitNeedsOnlyTheWindowOfAWindowGroup) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  manager_->Close(Compute(tokens, 8));
  const PrefixMatch match = Match(tokens);
  EXPECT_EQ(match.num_tokens, 40);
  EXPECT_THAT(match.blocks, SizeIs(10));
  EXPECT_THAT(match.window_blocks, SizeIs(2));
  EXPECT_EQ(match.cost.num_reclaimable, 12);
  const SequenceSlot slot = manager_->Open(Chain(tokens), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->NumBlocks(slot), 12);
  EXPECT_THAT(BlocksByPage(manager_->sequence(slot).groups[1]), SizeIs(10));
  EXPECT_EQ(BlocksByPage(manager_->sequence(slot).groups[1])[8],
            match.window_blocks[0]);
  EXPECT_EQ(BlocksByPage(manager_->sequence(slot).groups[1])[7], kNullBlock);
}

TEST_F(BlockManagerWindowsTest, HitIsAsShortAsAWindowGroupHasIt) {
  Make(TwoByTwo(31, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  manager_->Close(Compute(tokens, 40));
  EXPECT_EQ(manager_->stats().cached_blocks, 20);
  // Pages that fell out first go first: 0 to 7. Then the end of what Close
  // released: that of the window group goes after the tail's.
  const std::vector<int32_t> other = Prompt(2, 36);
  const SequenceSlot slot = Compute(other, 36);
  EXPECT_EQ(manager_->stats().reclaimed_blocks, 8);
  EXPECT_EQ(Match(tokens).num_tokens, 40);
  // Shorter prefixes have lost the window that they need.
  const std::vector<int32_t> shorter(tokens.begin(), tokens.begin() + 36);
  EXPECT_EQ(Match(shorter).num_tokens, 0);
  manager_->Close(slot);
}

TEST_F(BlockManagerWindowsTest, OnlyGroupsWindowReleasesTheTail) {
  Make(TwoByTwo(20, 8, {}), 10);
  const std::vector<int32_t> tokens = Prompt(1, 200);
  // Far more tokens than the pool has slots for.
  const SequenceSlot slot = Compute(tokens, 8);
  EXPECT_EQ(manager_->NumBlocks(slot), 2);
  EXPECT_EQ(manager_->sequence(slot).first().tail_end(), 50);
  std::vector<BlockTransfer> out;
  const SwapId swap = manager_->SwapOut(slot, &out);
  ASSERT_THAT(out, SizeIs(2));
  manager_->Close(slot);
  PrefixMatch match = Match(tokens);
  EXPECT_EQ(match.num_tokens, 0);  // the beginning has been reclaimed
  manager_->MatchSwapped(swap, 200, 0, &match);
  EXPECT_EQ(match.num_blocks(), 2);
  const SequenceSlot back = manager_->Open(Chain(tokens), match);
  std::vector<BlockTransfer> in;
  manager_->SwapIn(back, match, &in);
  manager_->CheckInvariants();
  EXPECT_THAT(in, SizeIs(2));
  EXPECT_EQ(manager_->sequence(back).first().tail_end(), 50);
  manager_->Close(back);
}

TEST_F(BlockManagerWindowsTest, RegionIsFoundWithTheWindowBeforeItsCut) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot slot = Compute(tokens, 24);
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 20, .page_total = 8, .num_fresh = 2}, &destinations));
  const BlockChain chain = Chain(tokens);
  const RegionPublication publication{
      .name = {.plan = "p", .history = "h", .length = 24},
      .chain = &chain,
      .tokens = tokens};
  const std::vector<int32_t> counts(4, 8);
  const EvictionReceipt receipt =
      manager_->CommitEviction(slot, 0, counts, &publication);
  EXPECT_TRUE(receipt.cached);
  manager_->CheckInvariants();
  manager_->Close(slot);
  const PrefixMatch match = MatchRegion(tokens);
  ASSERT_NE(match.cached, nullptr);
  EXPECT_EQ(match.num_tokens, 24);
  // FirstPage of 24 is 4: one page before the cut, one behind.
  EXPECT_THAT(match.window_blocks, SizeIs(2));
  const SequenceSlot sharer = manager_->Open(chain, match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->NumBlocks(sharer), 2 + 1 + 2);
  const BlockId needed = BlocksByPage(manager_->sequence(sharer).groups[1])[4];
  manager_->Close(sharer);
  // Without that window it is of no use.
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&needed, 1)).ok());
  manager_->CheckInvariants();
  EXPECT_EQ(MatchRegion(tokens).cached, nullptr);
}

}  // namespace
}  // namespace blockmgr
