#include "blockmgr/block_manager.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using BlockManagerTest = ManagerTest;

TEST_F(BlockManagerTest, ReserveTakesABlockPerStartedPage) {
  const SequenceSlot slot = manager_->Open({}, {});
  std::vector<BlockId> blocks;
  ASSERT_TRUE(Reserve(slot, 4, &blocks));
  EXPECT_EQ(blocks.size(), 1u);
  ASSERT_TRUE(Reserve(slot, 1, &blocks));
  EXPECT_EQ(blocks.size(), 2u);
  ASSERT_TRUE(Reserve(slot, 3, &blocks));
  EXPECT_EQ(blocks.size(), 2u);
  EXPECT_EQ(manager_->sequence(slot).first().tail, blocks);
  EXPECT_EQ(manager_->sequence(slot).num_reserved, 8);
  EXPECT_EQ(manager_->sequence(slot).num_settled, 0);
}

TEST_F(BlockManagerTest, ClosedSequencesBlocksWaitForStepsInFlight) {
  const SequenceSlot slot = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(slot, 6));
  Dispatch(1);
  Dispatch(2);
  EXPECT_EQ(manager_->NumReleasable(slot), 2);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 7);
  EXPECT_EQ(manager_->num_fenced(), 2);
  Acknowledge(1);
  EXPECT_EQ(manager_->num_available(), 7);
  Acknowledge(2);
  EXPECT_EQ(manager_->num_available(), 9);
}

TEST_F(BlockManagerTest, CommitPublishesFullSettledBlocksOnly) {
  const std::vector<int32_t> prompt = Prompt(1, 10);
  const SequenceSlot slot = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(slot, 10));
  EXPECT_FALSE(manager_->WillPublish(slot, 3));
  Commit(slot, prompt, 3);
  EXPECT_THAT(Match(prompt).blocks, IsEmpty());
  EXPECT_TRUE(manager_->WillPublish(slot, 1));
  Commit(slot, prompt, 1);
  EXPECT_THAT(Match(prompt).blocks,
              ElementsAre(manager_->sequence(slot).first().tail[0]));
  Commit(slot, prompt, 6);
  EXPECT_EQ(Match(prompt).blocks.size(), 2u);
}

TEST_F(BlockManagerTest, NothingIsCachedWhenCachingIsOff) {
  BlockManager manager(TwoByTwo(), 1, false);
  const std::vector<int32_t> prompt = Prompt(1, 8);
  const BlockChain chain = Chain(prompt);
  const SequenceSlot slot = manager.Open({}, {});
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  const std::vector<TokenDemand> demands = {{slot, 8}};
  ASSERT_TRUE(manager.Reserve(demands, &offsets, &blocks));
  EXPECT_FALSE(manager.WillPublish(slot, 8));
  manager.Commit(slot, 8, {}, {});
  EXPECT_THAT(manager.Match(chain, prompt, 8).blocks, IsEmpty());
  manager.Close(slot);
  EXPECT_EQ(manager.stats().free_blocks, 9);
}

TEST_F(BlockManagerTest, OpensOnTheCachedPrefixOfWholeBlocks) {
  const std::vector<int32_t> prompt = Prompt(1, 11);
  const SequenceSlot first = Compute(prompt);
  const PrefixMatch shared = Match(prompt);
  EXPECT_EQ(shared.cost.num_reclaimable, 0);
  const SequenceSlot second = manager_->Open({}, shared);
  EXPECT_EQ(manager_->sequence(second).num_settled, 8);
  EXPECT_EQ(manager_->sequence(second).first().tail[1],
            manager_->sequence(first).first().tail[1]);
  EXPECT_EQ(manager_->NumReleasable(second), 0);
  EXPECT_EQ(manager_->NumReleasable(first), 1);
  manager_->Close(first);
  EXPECT_EQ(manager_->NumReleasable(second), 2);
  manager_->Close(second);
  EXPECT_EQ(manager_->stats().cached_blocks, 2);
  EXPECT_EQ(Match(prompt).cost.num_reclaimable, 2);
}

TEST_F(BlockManagerTest, ReclaimsTheLeastRecentlyUsedSequenceTailFirst) {
  const std::vector<int32_t> older = Prompt(1, 12);
  const std::vector<int32_t> newer = Prompt(2, 12);
  manager_->Close(Compute(older));
  manager_->Close(Compute(newer));
  ASSERT_EQ(manager_->stats().free_blocks, 3);
  const SequenceSlot slot = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(slot, 4 * 4));
  EXPECT_EQ(Match(older).blocks.size(), 2u);
  ASSERT_TRUE(Reserve(slot, 4));
  EXPECT_EQ(Match(older).blocks.size(), 1u);
  EXPECT_EQ(Match(newer).blocks.size(), 3u);
  EXPECT_EQ(manager_->stats().reclaimed_blocks, 2u);
  manager_->CheckInvariants();
}

TEST_F(BlockManagerTest, CachedBlockBehindAFenceIsNotReclaimed) {
  const std::vector<int32_t> prompt = Prompt(1, 12);
  const SequenceSlot slot = Compute(prompt);
  Dispatch(1);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 6);
  EXPECT_EQ(manager_->num_fenced(), 3);
  EXPECT_EQ(manager_->stats().cached_blocks, 3);
  const SequenceSlot other = manager_->Open({}, {});
  EXPECT_FALSE(Reserve(other, 7 * 4));
  // It can be used again at once: nothing is written to it.
  EXPECT_EQ(Match(prompt).blocks.size(), 3u);
  EXPECT_EQ(Match(prompt).cost.num_reclaimable, 0);
  Acknowledge(1);
  EXPECT_EQ(Match(prompt).cost.num_reclaimable, 3);
  EXPECT_TRUE(Reserve(other, 9 * 4));
}

TEST_F(BlockManagerTest, BlockInUseAgainAndAgainHoldsUpNoOther) {
  const std::vector<int32_t> common = Prompt(1, 4);
  const SequenceSlot rare = Compute(Prompt(2, 4));
  SequenceSlot slot = Compute(common);
  Dispatch(1);
  manager_->Close(slot);
  manager_->Close(rare);
  for (uint64_t step = 2; step < 6; ++step) {
    slot = manager_->Open({}, Match(common));
    Dispatch(step);
    manager_->Close(slot);
    Acknowledge(step - 1);
    EXPECT_EQ(Match(common).cost.num_reclaimable, 0);
    EXPECT_EQ(Match(Prompt(2, 4)).cost.num_reclaimable, 1) << "step " << step;
  }
}

TEST_F(BlockManagerTest, ResetKeepsWhatSequencesUse) {
  const SequenceSlot slot = Compute(Prompt(1, 8));
  manager_->Close(Compute(Prompt(2, 8)));
  CacheReset reset = manager_->ResetPrefixCache();
  EXPECT_EQ(reset.num_dropped, 2);
  EXPECT_EQ(reset.num_in_use, 2);
  EXPECT_EQ(manager_->stats().free_blocks, 7);
  EXPECT_EQ(Match(Prompt(1, 8)).blocks.size(), 2u);
  manager_->Close(slot);
  reset = manager_->ResetPrefixCache();
  EXPECT_EQ(reset.num_dropped, 2);
  EXPECT_EQ(reset.num_in_use, 0);
  EXPECT_EQ(manager_->stats().free_blocks, 9);
}

using BlockManagerDeathTest = ManagerTest;

TEST_F(BlockManagerDeathTest, BrokenRequirementsAbort) {
  const SequenceSlot slot = manager_->Open({}, {});
  ASSERT_TRUE(Reserve(slot, 4));
  Commit(slot, Prompt(1, 4), 3);
  EXPECT_DEATH(manager_->Commit(slot, 2, {}, {}), "check failed");
  EXPECT_DEATH(manager_->Abort(slot, 2), "check failed");
  EXPECT_DEATH(manager_->Close(SequenceSlot{3}), "check failed");
  EXPECT_DEATH(manager_->Acknowledge(StepId{1}), "check failed");
}

}  // namespace
}  // namespace blockmgr
