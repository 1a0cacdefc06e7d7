#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

class BlockManagerForkTest : public ManagerTest {
 protected:
  // Opens a fork of all settled tokens.
  SequenceSlot Fork(SequenceSlot slot) {
    return manager_->Open(BlockChain(),
                          manager_->MatchFork(slot, At(slot).num_settled));
  }
};

TEST_F(BlockManagerForkTest, CannotForkWhatIsAboutToMove) {
  const SequenceSlot slot = Compute(Prompt(1, 8));
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  EXPECT_FALSE(manager_->CanFork(slot));
  EXPECT_DEATH(Fork(slot), "");
}

TEST_F(BlockManagerForkTest, CannotForkWithoutAnOpenSlot) {
  const SequenceSlot slot = Compute(Prompt(1, 5));
  for (int32_t i = 0; i < 3; ++i) Fork(slot);
  EXPECT_FALSE(manager_->CanFork(slot));
}

TEST_F(BlockManagerForkTest, AForkLeavesTheBlockThatItsParentWrites) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot child = Fork(parent);
  const std::vector<BlockId>& old = At(parent).first().tail;
  EXPECT_EQ(manager_->CountBlocksNeeded(parent, 1), 0);
  EXPECT_EQ(manager_->CountBlocksNeeded(child, 1), 1);
  std::vector<CopyOnWrite> copies;
  ASSERT_TRUE(Reserve(child, 1, &copies));
  manager_->CheckInvariants();
  const std::vector<BlockId>& tail = At(child).first().tail;
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0], (CopyOnWrite{child, {old[1], tail[1]}, 2}));
  EXPECT_EQ(tail[0], old[0]);
  EXPECT_NE(tail[1], old[1]);
}

// The parent wrote the block and is closed. The last of its forks may write
// there in place.
TEST_F(BlockManagerForkTest, TheLastHolderStaysOnTheSharedBlock) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot forks[] = {Fork(parent), Fork(parent)};
  manager_->Close(parent);
  const std::vector<BlockId> old = At(forks[0]).first().tail;
  const TokenDemand demands[] = {{forks[0], 1}, {forks[1], 1}};
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  manager_->CheckInvariants();
  const std::vector<BlockId>& left = At(forks[0]).first().tail;
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0], (CopyOnWrite{forks[0], {old[1], left[1]}, 2}));
  EXPECT_NE(left[1], old[1]);
  EXPECT_EQ(At(forks[1]).first().tail, old);
}

}  // namespace
}  // namespace blockmgr
