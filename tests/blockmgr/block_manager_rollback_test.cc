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
using ::testing::UnorderedElementsAre;

using BlockManagerRollbackTest = ManagerTest;

TEST_F(BlockManagerRollbackTest, RejectedDraftsGiveBackWholeBlocksOnly) {
  std::vector<int32_t> tokens = Prompt(1, 6);
  const SequenceSlot slot = Compute(tokens);
  ASSERT_TRUE(Reserve(slot, 8));  // one token and seven drafts
  Dispatch(1);
  Acknowledge(1);
  tokens.resize(14, 7);
  Commit(slot, tokens, 1);
  manager_->Rollback(slot, 7);
  manager_->CheckInvariants();
  EXPECT_EQ(At(slot).num_settled, 7);
  EXPECT_EQ(At(slot).num_reserved, 7);
  EXPECT_EQ(At(slot).first().tail.size(), 2u);
  EXPECT_EQ(manager_->num_available(), 7);
}

TEST_F(BlockManagerRollbackTest, SettledPositionsAndCutsCannotBeRejected) {
  const SequenceSlot slot = Compute(Prompt(1, 4));
  ASSERT_TRUE(Reserve(slot, 5));
  EXPECT_DEATH(manager_->Rollback(slot, 6), "");
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  EXPECT_DEATH(manager_->Rollback(slot, 2), "");
  manager_->Rollback(slot, 1);
  manager_->CheckInvariants();
}

TEST_F(BlockManagerRollbackTest, LossCutsToTheLongestValidPrefix) {
  const std::vector<int32_t> prompt = Prompt(1, 11);
  const SequenceSlot first = Compute(prompt);
  const SequenceSlot second = Compute(prompt);
  const SequenceSlot other = Compute(Prompt(2, 4));
  const std::vector<BlockId> before = At(first).first().tail;
  const std::vector<BlockId> lost = {before[1], before[1]};
  const absl::StatusOr<LossReport> report = manager_->LoseBlocks(lost);
  manager_->CheckInvariants();
  ASSERT_OK(report);
  EXPECT_THAT(report->sequences, UnorderedElementsAre(CutSequence{first, 4},
                                                      CutSequence{second, 4}));
  EXPECT_EQ(report->dropped_blocks, 1);
  EXPECT_THAT(At(first).first().tail, ElementsAre(before[0]));
  EXPECT_THAT(Match(prompt).blocks, ElementsAre(before[0]));
  EXPECT_EQ(At(other).num_settled, 4);
}

TEST_F(BlockManagerRollbackTest, UnknownLostBlockIsRefusedByItsPlace) {
  const SequenceSlot slot = Compute(Prompt(1, 6));
  const uint64_t hash = manager_->StateHash();
  const std::vector<BlockId> lost = {At(slot).first().tail[0], BlockId{10}};
  EXPECT_THAT(manager_->LoseBlocks(lost),
              IsInvalid("blocks[1]: expected 1 to 9, got 10"));
  EXPECT_EQ(manager_->StateHash(), hash);
}

}  // namespace
}  // namespace blockmgr
