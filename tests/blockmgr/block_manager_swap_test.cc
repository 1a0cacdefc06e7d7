#include <algorithm>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

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
  const std::vector<BlockId> tail = At(slot).first().tail;
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
  EXPECT_EQ(BlocksOf(in_), At(back).first().tail);
  EXPECT_EQ(HostOf(in_), HostOf(out_));
  EXPECT_EQ(manager_->num_available(), 6);
  Dispatch(2);
  EXPECT_FALSE(manager_->host().Contains(swap));
  Acknowledge(2);
  EXPECT_EQ(manager_->host().num_free(), 12);
}

TEST_F(BlockManagerSwapTest, LostHostBlocksDropTheirHolders) {
  const SwapId a = Leave(Compute(Prompt(1, 9)));
  const std::vector<HostBlockId> lost = {out_[1].host, HostBlockId{11}};
  const SwapId b = Leave(Compute(Prompt(2, 9)));
  const std::vector<HostBlockId> none = {HostBlockId{12}};
  const uint64_t hash = manager_->StateHash();
  EXPECT_THAT(manager_->LoseHostBlocks(none).status(),
              IsInvalid("blocks[0]: expected 0 to 11, got 12"));
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
