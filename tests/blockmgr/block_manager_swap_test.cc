#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BlockManagerSwapTest : public ManagerTest {
 protected:
  BlockManagerSwapTest() : ManagerTest(12) {}

  // Swaps the sequence out, and closes it.
  SwapId Leave(SequenceSlot slot) {
    out_.clear();
    const SwapId swap = manager_->SwapOut(slot, &out_);
    manager_->Close(slot);
    manager_->CheckInvariants();
    return swap;
  }
  // With what the cache has of `tokens`.
  SequenceSlot ComeBack(SwapId swap, const std::vector<int32_t>& tokens,
                        int32_t num_tokens, int32_t length = 0) {
    PrefixMatch match = Match(tokens);
    manager_->MatchSwapped(swap, num_tokens, length, &match);
    const SequenceSlot slot = manager_->Open(Chain(tokens), match);
    in_.clear();
    if (match.swap != kNoSwap) manager_->SwapIn(slot, match, &in_);
    return slot;
  }
  // A region of the first `cut` positions that keeps `counts`.
  void Evict(SequenceSlot slot, int32_t cut, const std::vector<int32_t>& counts,
             int32_t num_fresh = 1) {
    int64_t num_pages = 0;
    for (const int32_t count : counts) num_pages += (count + 3) / 4;
    std::vector<BlockId> destinations;
    ASSERT_TRUE(manager_->ReserveEviction(
        slot, {.cut = cut, .page_total = num_pages, .num_fresh = num_fresh},
        &destinations));
    ASSERT_OK(manager_->ValidateCounts(slot, counts));
    manager_->CommitEviction(slot, counts);
    manager_->CheckInvariants();
  }
  static std::vector<BlockId> BlocksOf(
      const std::vector<BlockTransfer>& transfers) {
    std::vector<BlockId> blocks(transfers.size());
    std::ranges::transform(transfers, blocks.begin(), &BlockTransfer::block);
    return blocks;
  }
  static std::vector<HostBlockId> HostOf(
      const std::vector<BlockTransfer>& transfers) {
    std::vector<HostBlockId> blocks(transfers.size());
    std::ranges::transform(transfers, blocks.begin(), &BlockTransfer::host);
    return blocks;
  }

  std::vector<BlockTransfer> out_;
  std::vector<BlockTransfer> in_;
};

TEST_F(BlockManagerSwapTest, SettledTokensLeaveAndComeBack) {
  const std::vector<int32_t> tokens = Prompt(1, 10);
  const SequenceSlot slot = Compute(tokens);
  ASSERT_TRUE(Reserve(slot, 7));  // not settled: stays behind
  const std::vector<BlockId> tail = At(slot).tail;
  const SwapId swap = Leave(slot);
  ASSERT_NE(swap, kNoSwap);
  EXPECT_THAT(BlocksOf(out_), ElementsAre(tail[0], tail[1], tail[2]));
  EXPECT_EQ(manager_->host().at(swap).num_tokens, 10);
  EXPECT_EQ(manager_->num_available(), 9);
  manager_->ResetPrefixCache();
  Dispatch(1);
  Acknowledge(1);

  const SequenceSlot back = ComeBack(swap, tokens, 10);
  EXPECT_EQ(At(back).num_settled, 10);
  EXPECT_EQ(At(back).num_reserved, 10);
  EXPECT_EQ(BlocksOf(in_), At(back).tail);
  EXPECT_EQ(HostOf(in_), HostOf(out_));
  EXPECT_EQ(manager_->num_available(), 6);
  Dispatch(2);
  EXPECT_FALSE(manager_->host().Contains(swap));
  Acknowledge(2);
  EXPECT_EQ(manager_->host().num_free(), 12);
}

TEST_F(BlockManagerSwapTest, WhereNothingIsKeptNothingLeaves) {
  const SequenceSlot slot = Compute(Prompt(1, 8));
  Evict(slot, 8, {0, 0, 0, 0}, 0);
  ASSERT_EQ(manager_->NumBlocks(slot), 0);
  const uint64_t hash = manager_->StateHash();
  std::vector<BlockTransfer> transfers;
  EXPECT_EQ(manager_->SwapOut(slot, &transfers), kNoSwap);
  EXPECT_THAT(transfers, IsEmpty());
  EXPECT_EQ(manager_->StateHash(), hash);
}

TEST_F(BlockManagerSwapTest, WhatIsCachedIsSharedAgain) {
  const std::vector<int32_t> tokens = Prompt(1, 18);
  const SequenceSlot slot = Compute(tokens);
  const std::vector<BlockId> tail = At(slot).tail;
  const SequenceSlot other = Compute(Prompt(1, 9));  // the first two
  const SwapId swap = Leave(slot);
  ASSERT_THAT(out_, SizeIs(5));
  // What nobody uses is reclaimed.
  const SequenceSlot hog = Compute(Prompt(2, 24));
  EXPECT_EQ(manager_->num_available(), 0);
  manager_->Close(hog);
  manager_->ResetPrefixCache();

  const SequenceSlot back = ComeBack(swap, tokens, 18);
  EXPECT_THAT(in_, SizeIs(3));
  EXPECT_EQ(
      HostOf(in_),
      (std::vector<HostBlockId>({out_[2].host, out_[3].host, out_[4].host})));
  EXPECT_EQ(At(back).tail[0], At(other).tail[0]);
  EXPECT_EQ(At(back).tail[1], At(other).tail[1]);
  EXPECT_EQ(BlocksOf(in_)[0], At(back).tail[2]);
  EXPECT_EQ(At(back).num_settled, 18);
  manager_->CheckInvariants();
}

TEST_F(BlockManagerSwapTest, TheCacheIsAsGoodWhereItHasAsMuch) {
  const std::vector<int32_t> tokens = Prompt(1, 17);
  const SequenceSlot slot = Compute(tokens);
  const SwapId swap = Leave(slot);
  PrefixMatch match = Match(tokens);
  manager_->MatchSwapped(swap, 16, 0, &match);
  EXPECT_EQ(match.swap, kNoSwap);
  EXPECT_EQ(match.num_tokens, 16);
  manager_->MatchSwapped(swap, 17, 0, &match);
  EXPECT_EQ(match.swap, swap);
  EXPECT_EQ(match.num_tail_ins, 1);
  EXPECT_EQ(match.num_taken(), 5);  // four cached ones, and one
  EXPECT_EQ(match.num_blocks(), 5);
}

TEST_F(BlockManagerSwapTest, PartsOfCachedBlocksGiveWay) {
  const std::vector<int32_t> tokens = Prompt(1, 11);
  const SequenceSlot slot = Compute(tokens);
  const SwapId swap = Leave(slot);
  std::vector<int32_t> longer = Prompt(1, 12);
  manager_->Close(Compute(longer));
  PrefixMatch match = manager_->Match(Chain(tokens), tokens, 10);
  manager_->MatchPart(Chain(tokens), tokens, 10, &match);
  ASSERT_TRUE(match.has_part);
  manager_->MatchSwapped(swap, 11, 0, &match);
  EXPECT_FALSE(match.has_part);
  EXPECT_THAT(match.blocks, SizeIs(2));
  EXPECT_EQ(match.num_tail_ins, 1);
}

TEST_F(BlockManagerSwapTest, WhatComesBackIsPublishedWithTheNextStep) {
  const std::vector<int32_t> tokens = Prompt(1, 9);
  const SwapId swap = Leave(Compute(tokens));
  manager_->ResetPrefixCache();
  const SequenceSlot slot = ComeBack(swap, tokens, 9);
  EXPECT_TRUE(manager_->IsComingBack(slot));
  EXPECT_FALSE(manager_->CanFork(slot));
  EXPECT_THAT(Match(tokens).blocks, IsEmpty());
  ASSERT_TRUE(Reserve(slot, 1));
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, Prompt(1, 10), 1);
  EXPECT_FALSE(manager_->IsComingBack(slot));
  EXPECT_TRUE(manager_->CanFork(slot));
  EXPECT_THAT(Match(tokens).blocks,
              ElementsAre(At(slot).tail[0], At(slot).tail[1]));
}

// Where each page of a region lies among its blocks, in their order.
std::vector<int64_t> Places(const ModelLayout& layout,
                            const RaggedRegion& region,
                            const std::vector<BlockId>& blocks) {
  std::map<BlockId, int64_t> order;
  for (const BlockId block : blocks) {
    order.emplace(block, static_cast<int64_t>(order.size()));
  }
  std::vector<int64_t> places;
  for (const PageId page : region.page_list()) {
    places.push_back((order.at(layout.page_block(page)) * layout.num_layers +
                      layout.page_layer(page)) *
                         layout.num_heads +
                     layout.page_head(page));
  }
  return places;
}

TEST_F(BlockManagerSwapTest, ARegionComesBackPageByPage) {
  const std::vector<int32_t> tokens = Prompt(1, 22);
  const SequenceSlot slot = Compute(tokens);
  Evict(slot, 16, {5, 1, 0, 9}, 2);
  // In place over the first one: its lists do not follow from its counts.
  ASSERT_TRUE(Reserve(slot, 4));
  Commit(slot, Prompt(1, 26), 4);
  Evict(slot, 20, {8, 3, 1, 12}, 0);
  const RaggedRegion before = manager_->DeriveRegion(slot);
  const std::vector<BlockId> blocks = At(slot).region->blocks;
  const std::vector<int64_t> places = Places(TwoByTwo(), before, blocks);
  const std::vector<BlockId> tail = At(slot).tail;

  const SwapId swap = Leave(slot);
  std::vector<BlockId> all = blocks;
  all.insert(all.end(), tail.begin(), tail.end());
  EXPECT_EQ(BlocksOf(out_), all);
  // So that other blocks are handed out.
  const SequenceSlot hog = Compute(Prompt(2, 8));
  Dispatch(1);
  Acknowledge(1);
  const SequenceSlot back = ComeBack(swap, Prompt(1, 26), 25, 26 - 1);
  manager_->CheckInvariants();
  const RaggedRegion after = manager_->DeriveRegion(back);
  EXPECT_THAT(after.kept(), ::testing::ElementsAreArray(before.kept()));
  EXPECT_THAT(after.page_offsets(),
              ::testing::ElementsAreArray(before.page_offsets()));
  EXPECT_NE(At(back).region->blocks, blocks);
  EXPECT_EQ(Places(TwoByTwo(), after, At(back).region->blocks), places);
  EXPECT_EQ(At(back).cut(), 20);
  EXPECT_EQ(At(back).num_settled, 25);
  EXPECT_EQ(HostOf(in_), HostOf(out_));
  // Nobody finds what is computed over it.
  ASSERT_TRUE(Reserve(back, 7));
  Commit(back, Prompt(1, 32), 7);
  manager_->Close(hog);
  manager_->Close(back);
  EXPECT_EQ(manager_->stats().used_blocks, 0);
}

TEST_F(BlockManagerSwapTest, LostHostBlocksDropTheirHolders) {
  const SwapId a = Leave(Compute(Prompt(1, 9)));
  const std::vector<HostBlockId> lost = {out_[1].host, HostBlockId{11}};
  const SwapId b = Leave(Compute(Prompt(2, 9)));
  const std::vector<HostBlockId> none = {HostBlockId{12}};
  const uint64_t hash = manager_->StateHash();
  EXPECT_THAT(manager_->LoseHostBlocks(none).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("blocks[0]: expected 0 to 11, got 12")));
  EXPECT_EQ(manager_->StateHash(), hash);
  const auto dropped = manager_->LoseHostBlocks(lost);
  ASSERT_OK(dropped.status());
  EXPECT_THAT(*dropped, ElementsAre(a));
  EXPECT_TRUE(manager_->host().Contains(b));
  manager_->CheckInvariants();
}

TEST_F(BlockManagerSwapTest, MemoryOfTheHostTierIsCounted) {
  const int64_t with = manager_->metadata_bytes();
  EXPECT_GT(with, BlockManager(TwoByTwo(), 4, true).metadata_bytes());
}

using BlockManagerSwapDeathTest = BlockManagerSwapTest;

TEST_F(BlockManagerSwapDeathTest, WhatIsMovedCannotLeave) {
  const SequenceSlot slot = Compute(Prompt(1, 17));
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 16, .page_total = 4, .num_fresh = 1}, &destinations));
  EXPECT_DEATH(manager_->SwapOut(slot, &out_), "");
  const SequenceSlot empty = manager_->Open({}, {});
  EXPECT_DEATH(manager_->SwapOut(empty, &out_), "");
}

TEST_F(BlockManagerSwapDeathTest, NobodyComesBackToTooFewBlocks) {
  const SwapId swap = Leave(Compute(Prompt(1, 17)));
  manager_->ResetPrefixCache();
  Compute(Prompt(2, 20));
  EXPECT_DEATH(ComeBack(swap, Prompt(1, 17), 17), "num_available");
}

}  // namespace
}  // namespace blockmgr
