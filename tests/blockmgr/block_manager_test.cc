#include "blockmgr/block_manager.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using BlockManagerTest = ManagerTest;

TEST_F(BlockManagerTest, OpensOnTheCachedPrefixOfWholeBlocks) {
  const std::vector<int32_t> prompt = Prompt(1, 11);
  const SequenceSlot first = Compute(prompt);
  const PrefixMatch shared = Match(prompt);
  EXPECT_EQ(shared.cost.num_reclaimable, 0);
  const SequenceSlot second = manager_->Open({}, shared);
  EXPECT_EQ(manager_->sequence(second).num_settled, 8);
  EXPECT_EQ(manager_->sequence(second).first().tail[1],
            manager_->sequence(first).first().tail[1]);
  EXPECT_EQ(manager_->CountReleasable(second), 0);
  EXPECT_EQ(manager_->CountReleasable(first), 1);
  manager_->Close(first);
  EXPECT_EQ(manager_->CountReleasable(second), 2);
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
