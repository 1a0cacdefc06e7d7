// Windows where a sequence has gone back, or a part of them was lost.

#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/windows_fixture.h"

namespace blockmgr {
namespace {

using BlockManagerWindowEdgesTest = WindowsTest;

TEST_F(BlockManagerWindowEdgesTest, GoesBackByOneTokenOnlyOnceFromAPagesEdge) {
  Make(WithWindows(60, 0, {8}));
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
  Make(WithWindows(60, 0, {9}));
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
  Make(WithWindows(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot first = Compute(tokens, 24);
  ASSERT_TRUE(Compress(first, 20, tokens).cached);
  const BlockId needed = manager_->window_tail(first, 1)[4];
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&needed, 1)).ok());
  const SequenceSlot second = Compute(tokens, 24);
  EXPECT_TRUE(Compress(second, 20, tokens).cached);
  manager_->CheckInvariants();
  const PrefixMatch match = MatchRegion(tokens);
  ASSERT_NE(match.cached, nullptr);
  EXPECT_EQ(match.cached->record, manager_->sequence(second).region);
}

TEST_F(BlockManagerWindowEdgesTest,
       RegionHasTheWindowThatAnotherTailIsFoundBy) {
  Make(WithWindows(60, 0, {8}));
  const std::vector<int32_t> tokens = Prompt(1, 24);
  const SequenceSlot first = Compute(tokens, 24);
  // What its windows have of the last page is gone, and found again by another
  // sequence: beside the block of group 0 that the first one still has.
  const SequenceSlot second = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(second, 20));
  Commit(second, tokens, 20);
  const BlockId lost = manager_->window_tail(first, 1)[5];
  ASSERT_TRUE(Reserve(second, 4));
  const SequenceSlot third = manager_->Open(Chain(tokens), {});
  ASSERT_TRUE(Reserve(third, 24));
  ASSERT_TRUE(manager_->LoseBlocks(std::span(&lost, 1)).ok());
  Commit(second, tokens, 4);
  ASSERT_TRUE(Compress(second, 20, tokens).published);
  manager_->CheckInvariants();
  const PrefixMatch match = MatchRegion(tokens);
  ASSERT_NE(match.cached, nullptr);
  EXPECT_EQ(match.cached->record, manager_->sequence(second).region);
}

TEST_F(BlockManagerWindowEdgesTest, ReclaimedBlocksCountWhatGoesWithThem) {
  Make(WithWindows(9, 0, {8}));
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
