#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;

class BlockManagerRollbackTest : public ManagerTest {
 protected:
  const SequenceCache& At(SequenceSlot slot) const {
    return manager_.sequence(slot);
  }
};

TEST_F(BlockManagerRollbackTest, RejectedDraftsGiveBackWholeBlocksOnly) {
  std::vector<int32_t> tokens = Prompt(1, 6);
  const SequenceSlot slot = Compute(tokens);
  ASSERT_TRUE(Reserve(slot, 8));  // one token and seven drafts
  Dispatch(1);
  Acknowledge(1);
  tokens.resize(14, 7);
  Commit(slot, tokens, 1);
  manager_.Rollback(slot, 7);
  manager_.CheckInvariants();
  EXPECT_EQ(At(slot).num_settled, 7);
  EXPECT_EQ(At(slot).num_reserved, 7);
  EXPECT_EQ(At(slot).tail.size(), 2u);
  EXPECT_EQ(manager_.num_available(), 7);
}

TEST_F(BlockManagerRollbackTest, RejectedBlocksWaitForStepsInFlight) {
  const SequenceSlot slot = Compute(Prompt(1, 4));
  ASSERT_TRUE(Reserve(slot, 4));
  Dispatch(1);
  ASSERT_TRUE(Reserve(slot, 4));
  Dispatch(2);
  Acknowledge(1);
  manager_.Rollback(slot, 8);
  EXPECT_EQ(manager_.num_available(), 6);
  EXPECT_EQ(manager_.num_fenced(), 2);
  Acknowledge(2);
  EXPECT_EQ(manager_.num_available(), 8);
}

TEST_F(BlockManagerRollbackTest, RejectedTokensAreNeverFound) {
  const std::vector<int32_t> drafted = Prompt(1, 8);
  std::vector<int32_t> tokens = drafted;
  const SequenceSlot slot = Compute(Prompt(1, 4));
  ASSERT_TRUE(Reserve(slot, 4));
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, tokens, 2);
  manager_.Rollback(slot, 2);
  tokens[6] = tokens[7] = 7;
  ASSERT_TRUE(Reserve(slot, 2));
  Dispatch(2);
  Acknowledge(2);
  Commit(slot, tokens, 2);
  EXPECT_EQ(Match(drafted).blocks.size(), 1u);
  EXPECT_EQ(Match(tokens).blocks, At(slot).tail);
}

TEST_F(BlockManagerRollbackTest, SettledPositionsAndCutsCannotBeRejected) {
  const SequenceSlot slot = Compute(Prompt(1, 4));
  ASSERT_TRUE(Reserve(slot, 5));
  EXPECT_DEATH(manager_.Rollback(slot, 6), "");
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_.ReserveEviction(slot, 8, 4, 1, &destinations));
  EXPECT_DEATH(manager_.Rollback(slot, 2), "");
  manager_.Rollback(slot, 1);
  manager_.CheckInvariants();
}

// The copy of a fork was made by a step: there is no way back to the source.
TEST_F(BlockManagerRollbackTest, CopyOfADispatchedStepStays) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot child = manager_.Fork(parent);
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const std::vector<TokenDemand> demands = {{child, 3}};
  ASSERT_TRUE(manager_.Reserve(demands, &offsets, &blocks, &copies));
  ASSERT_EQ(copies.size(), 1u);
  Dispatch(1);
  manager_.Rollback(child, 3);
  manager_.CheckInvariants();
  EXPECT_EQ(At(child).tail.back(), copies[0].blocks.destination);
  copies.clear();
  ASSERT_TRUE(manager_.Reserve(demands, &offsets, &blocks, &copies));
  EXPECT_THAT(copies, IsEmpty());
}

}  // namespace
}  // namespace blockmgr
