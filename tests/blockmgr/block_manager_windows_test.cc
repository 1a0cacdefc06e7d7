#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/block_tables.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using BlockManagerWindowEdgesTest = WindowsTest;
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
  EXPECT_EQ(manager_->NumFalling(slot), 6 + 5);
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

TEST_F(BlockManagerWindowsTest, RefusedReserveChangesNothing) {
  Make(TwoByTwo(10, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  const SequenceSlot slot = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(slot, 16));
  const uint64_t before = manager_->StateHash();
  EXPECT_FALSE(Reserve(slot, 4));
  EXPECT_EQ(manager_->StateHash(), before);
  Commit(slot, tokens, 16);
  // Two pages fell out of the window: they are reclaimed.
  EXPECT_TRUE(Reserve(slot, 4));
  manager_->CheckInvariants();
}

TEST_F(BlockManagerWindowsTest, HitNeedsOnlyTheWindowOfAWindowGroup) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  manager_->Close(Compute(tokens, 8));
  const PrefixMatch match = Match(tokens);
  EXPECT_EQ(match.num_tokens, 40);
  EXPECT_THAT(match.blocks, SizeIs(10));
  EXPECT_THAT(match.window_blocks, SizeIs(2));
  EXPECT_EQ(match.num_reclaimable, 12);
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

TEST_F(BlockManagerWindowsTest, WindowBlocksGoWithTheirPrefix) {
  Make(TwoByTwo(40, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 20);
  manager_->Close(Compute(tokens, 20));
  const PrefixMatch match = Match(tokens);
  ASSERT_EQ(match.num_tokens, 20);
  // The block is lost: what follows is not found, nor what goes with it.
  const BlockId lost = match.blocks[1];
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&lost, 1)).ok());
  manager_->CheckInvariants();
  EXPECT_EQ(Match(tokens).num_tokens, 4);
  EXPECT_EQ(manager_->stats().cached_blocks, 2);
}

TEST_F(BlockManagerWindowsTest, LostWindowBlockCutsBackOrToTheStart) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot slot = Compute(tokens, 24);
  const BlockId lost = BlocksByPage(manager_->sequence(slot).groups[1])[5];
  const auto report = manager_->LoseBlocks(std::span(&lost, 1));
  ASSERT_TRUE(report.ok());
  // 20 tokens would be left, but the window before them is gone.
  EXPECT_THAT(report->sequences, ElementsAre(CutSequence{slot, 0}));
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->NumBlocks(slot), 0);
  // The prefix cache still has what fell out, so 20 tokens are found again.
  EXPECT_EQ(Match(tokens).num_tokens, 20);
}

TEST_F(BlockManagerWindowsTest, ForksShareWindowsAndCopyTheLastBlocks) {
  Make(TwoByTwo(60, 0, {8, 8}));
  const std::vector<int32_t> tokens = Prompt(1, 30);
  const SequenceSlot parent = Compute(tokens, 30);
  const int32_t before = manager_->stats().used_blocks;
  const SequenceSlot child = manager_->Fork(parent);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->stats().used_blocks, before);
  EXPECT_EQ(BlocksByPage(manager_->sequence(child).groups[2]),
            BlocksByPage(manager_->sequence(parent).groups[2]));
  EXPECT_EQ(manager_->BlocksNeeded(child, 1), 3);
  std::vector<CopyOnWrite> copies;
  ASSERT_TRUE(Reserve(child, 1, &copies));
  manager_->CheckInvariants();
  ASSERT_THAT(copies, SizeIs(3));
  for (int32_t group = 0; group < 3; ++group) {
    EXPECT_EQ(copies[group].group, group);
    EXPECT_EQ(copies[group].num_tokens, 2);
    const BlockId shared =
        group == 0
            ? manager_->sequence(parent).first().tail.back()
            : BlocksByPage(manager_->sequence(parent).groups[group]).back();
    EXPECT_EQ(copies[group].blocks.source, shared);
  }
  // Not sent after all: everything is as before.
  manager_->Abort(child, 1);
  manager_->CheckInvariants();
  EXPECT_EQ(BlocksByPage(manager_->sequence(child).groups[1]),
            BlocksByPage(manager_->sequence(parent).groups[1]));
  ASSERT_TRUE(Reserve(child, 1, &copies));
  manager_->Dispatch(StepId{1});
  manager_->Acknowledge(StepId{1});
  Commit(child, tokens, 1);
  manager_->Close(parent);
  manager_->Close(child);
  manager_->CheckInvariants();
}

TEST_F(BlockManagerWindowsTest, ForkGoesBackByOneTokenButNotByAPage) {
  Make(TwoByTwo(60, 0, {8}));
  // Where the window moves on to another page.
  for (const int32_t length : {24, 25, 26, 27}) {
    const SequenceSlot parent = Compute(Prompt(1, length), length);
    EXPECT_TRUE(manager_->CanGoBack(parent, length - 1));
    EXPECT_FALSE(manager_->CanGoBack(parent, length - 5));
    const PrefixMatch match = manager_->MatchFork(parent, length - 1);
    const SequenceSlot child = manager_->Open(Chain(Prompt(1, length)), match);
    manager_->CheckInvariants();
    EXPECT_EQ(manager_->sequence(child).num_settled, length - 1);
    const int32_t num_parts = (length - 1) % 4 == 0 ? 0 : 2;
    EXPECT_EQ(manager_->NumBlocks(child), match.num_blocks() + num_parts);
    std::vector<CopyOnWrite> copies;
    ASSERT_TRUE(Reserve(child, 1, &copies));
    manager_->Dispatch(StepId{static_cast<uint64_t>(length)});
    manager_->Acknowledge(StepId{static_cast<uint64_t>(length)});
    Commit(child, Prompt(1, length), 1);
    manager_->Close(parent);
    manager_->Close(child);
    manager_->CheckInvariants();
  }
}

TEST_F(BlockManagerWindowsTest, RollbackGivesBackTheBlocksOfAllGroups) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 30);
  const SequenceSlot slot = Compute(tokens, 30);
  const int32_t before = manager_->num_available();
  ASSERT_TRUE(Reserve(slot, 7));
  EXPECT_EQ(manager_->num_available(), before - 4);
  manager_->Rollback(slot, 7);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->num_available(), before);
}

TEST_F(BlockManagerWindowsTest, SwapCopiesTheWindowsAndBringsThemBack) {
  Make(TwoByTwo(60, 0, {8, 12}), 40);
  const std::vector<int32_t> tokens = Prompt(1, 30);
  const SequenceSlot slot = Compute(tokens, 30);
  std::vector<BlockTransfer> out;
  std::vector<BlockId> held = manager_->sequence(slot).first().tail;
  for (int32_t group = 1; group <= 2; ++group) {
    for (const BlockId block :
         BlocksByPage(manager_->sequence(slot).groups[group])) {
      if (block != kNullBlock) held.push_back(block);
    }
  }
  const SwapId swap = manager_->SwapOut(slot, &out);
  ASSERT_NE(swap, kNoSwap);
  ASSERT_THAT(out, SizeIs(8 + 3 + 4));
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].block, held[i]);
  manager_->Close(slot);
  manager_->ResetPrefixCache();
  PrefixMatch match;
  manager_->MatchSwapped(swap, 30, 0, &match);
  EXPECT_EQ(match.num_ins(), 15);
  EXPECT_EQ(match.num_blocks(), 15);
  const SequenceSlot back = manager_->Open(Chain(tokens), match);
  std::vector<BlockTransfer> in;
  manager_->SwapIn(back, match, &in);
  manager_->CheckInvariants();
  ASSERT_THAT(in, SizeIs(15));
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i].host, out[i].host);
  EXPECT_EQ(in.back().block,
            BlocksByPage(manager_->sequence(back).groups[2]).back());
  EXPECT_EQ(manager_->NumBlocks(back), 15);
}

TEST_F(BlockManagerWindowsTest, SwapKeepsCachedBlocksOfGroupZero) {
  Make(TwoByTwo(60, 0, {8}), 40);
  const std::vector<int32_t> tokens = Prompt(1, 30);
  const SequenceSlot slot = Compute(tokens, 30);
  std::vector<BlockTransfer> out;
  const SwapId swap = manager_->SwapOut(slot, &out);
  manager_->Close(slot);
  PrefixMatch match = Match(tokens);
  ASSERT_EQ(match.num_tokens, 28);
  ASSERT_EQ(match.num_reclaimable, 7 + 2);
  manager_->MatchSwapped(swap, 30, 0, &match);
  EXPECT_EQ(match.num_tail_ins, 1);
  EXPECT_EQ(match.num_ins(), 1 + 3);
  EXPECT_EQ(match.num_taken(), 7 + 4);
  const SequenceSlot back = manager_->Open(Chain(tokens), match);
  std::vector<BlockTransfer> in;
  manager_->SwapIn(back, match, &in);
  manager_->CheckInvariants();
  ASSERT_THAT(in, SizeIs(4));
  EXPECT_EQ(in[0].host, out[7].host);
  EXPECT_EQ(in[1].host, out[8].host);
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

TEST_F(BlockManagerWindowsTest, OnlyGroupsHitTakesTheWindowAlone) {
  Make(TwoByTwo(60, 8, {}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  manager_->Close(Compute(tokens, 8));
  const PrefixMatch match = Match(tokens);
  EXPECT_EQ(match.num_tokens, 40);
  EXPECT_EQ(match.num_out, 8);
  EXPECT_EQ(match.num_blocks(), 2);
  EXPECT_EQ(match.num_reclaimable, 2);
  const SequenceSlot slot = manager_->Open(Chain(tokens), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->stats().used_blocks, 2);
  std::vector<int32_t> longer = tokens;
  longer.resize(48, 7);
  ASSERT_TRUE(Reserve(slot, 8));
  Commit(slot, longer, 8);
  EXPECT_EQ(Match(longer).num_tokens, 48);
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

TEST_F(BlockManagerWindowsTest, ResetDropsWindowBlocksThatCoolDown) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 40);
  const SequenceSlot slot = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(slot, 40));
  manager_->Dispatch(StepId{1});
  manager_->Dispatch(StepId{2});
  Commit(slot, tokens, 40);
  // Eight pages of the window group wait for the fence, in the cache.
  EXPECT_EQ(manager_->num_fenced(), 8);
  manager_->Close(slot);
  manager_->CheckInvariants();
  const CacheReset reset = manager_->ResetPrefixCache();
  EXPECT_EQ(reset.num_dropped, 20);
  EXPECT_EQ(reset.num_in_use, 0);
  manager_->CheckInvariants();
  manager_->Acknowledge(StepId{1});
  manager_->Acknowledge(StepId{2});
  EXPECT_EQ(manager_->num_available(), 59);
}

TEST_F(BlockManagerWindowEdgesTest, GoesBackByOneTokenOnlyOnceFromAPagesEdge) {
  Make(TwoByTwo(60, 0, {8}));
  const SequenceSlot slot = Compute(Prompt(1, 12), 12);
  ASSERT_TRUE(manager_->CanGoBack(slot, 11));
  manager_->CutBack(slot, 11);
  manager_->CheckInvariants();
  // The query at position 10 attends to position 3, whose page is gone.
  EXPECT_FALSE(manager_->CanGoBack(slot, 10));
  EXPECT_TRUE(manager_->CanGoBack(slot, 11));
  // Far enough from the edge it goes back twice.
  const SequenceSlot other = Compute(Prompt(2, 15), 15);
  manager_->CutBack(other, 13);
  ASSERT_TRUE(manager_->CanGoBack(other, 12));
  manager_->CutBack(other, 12);
  EXPECT_FALSE(manager_->CanGoBack(other, 10));
  manager_->CheckInvariants();
}

TEST_F(BlockManagerWindowEdgesTest, RegionIsNotPublishedWithoutAWindowPage) {
  Make(TwoByTwo(60, 0, {9}));
  const std::vector<int32_t> tokens = Prompt(1, 17);
  const SequenceSlot slot = Compute(tokens, 17);
  // 16 tokens have page 1 in their window, and it has left that of 17.
  manager_->CutBack(slot, 16);
  const EvictionReceipt receipt = Compress(slot, 12, tokens);
  EXPECT_FALSE(receipt.published);
  EXPECT_FALSE(receipt.cached);
  manager_->CheckInvariants();
}

TEST_F(BlockManagerWindowEdgesTest, EqualRegionWithoutItsWindowIsReplaced) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot first = Compute(tokens, 24);
  ASSERT_TRUE(Compress(first, 20, tokens).cached);
  const BlockId needed = BlocksByPage(manager_->sequence(first).groups[1])[4];
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&needed, 1)).ok());
  const SequenceSlot second = Compute(tokens, 24);
  EXPECT_TRUE(Compress(second, 20, tokens).cached);
  manager_->CheckInvariants();
  const PrefixMatch match = MatchRegion(tokens);
  ASSERT_NE(match.cached, nullptr);
  EXPECT_EQ(match.cached->record, manager_->sequence(second).first().region);
}

TEST_F(BlockManagerWindowEdgesTest,
       RegionHasTheWindowThatAnotherTailIsFoundBy) {
  Make(TwoByTwo(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot first = Compute(tokens, 24);
  // What its windows have of the last page is gone, and found again by another
  // sequence: beside the block of group 0 that the first one still has.
  const SequenceSlot second = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(second, 20));
  Commit(second, tokens, 20);
  const BlockId lost = BlocksByPage(manager_->sequence(first).groups[1])[5];
  ASSERT_TRUE(Reserve(second, 4));
  const SequenceSlot third = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(third, 24));
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&lost, 1)).ok());
  Commit(second, tokens, 4);
  ASSERT_TRUE(Compress(second, 20, tokens).published);
  manager_->CheckInvariants();
  const PrefixMatch match = MatchRegion(tokens);
  ASSERT_NE(match.cached, nullptr);
  EXPECT_EQ(match.cached->record, manager_->sequence(second).first().region);
}

TEST_F(BlockManagerWindowEdgesTest, ReclaimedBlocksCountWhatGoesWithThem) {
  Make(TwoByTwo(9, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 16);
  manager_->Close(Compute(tokens, 16));
  ASSERT_EQ(manager_->stats().cached_blocks, 8);
  const SequenceSlot slot = manager_->Open(Chain(Prompt(2, 4)), {});
  // Pages 0 and 1 of the window group, then the end of the tail, and the
  // window's last page with it.
  ASSERT_TRUE(Reserve(slot, 4));
  EXPECT_EQ(manager_->stats().reclaimed_blocks, 2);
  ASSERT_TRUE(Reserve(slot, 4));
  EXPECT_EQ(manager_->stats().reclaimed_blocks, 4);
  EXPECT_EQ(manager_->stats().cached_blocks, 4);
}

}  // namespace
}  // namespace blockmgr
