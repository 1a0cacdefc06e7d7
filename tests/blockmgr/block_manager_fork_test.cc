#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

class BlockManagerForkTest : public ManagerTest {
 protected:
  // One token for each; the copies that takes.
  std::vector<CopyOnWrite> ReserveOne(const std::vector<SequenceSlot>& slots) {
    std::vector<TokenDemand> demands;
    demands.reserve(slots.size());
    for (const SequenceSlot slot : slots) demands.push_back({slot, 1});
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    std::vector<CopyOnWrite> copies;
    EXPECT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
    manager_->CheckInvariants();
    return copies;
  }
  PrefixMatch MatchPart(const std::vector<int32_t>& tokens,
                        int32_t max_tokens) const {
    const BlockChain chain = Chain(tokens);
    PrefixMatch match = manager_->Match(chain, tokens, max_tokens);
    manager_->MatchPart(chain, tokens, max_tokens, &match);
    return match;
  }
  void Close(SequenceSlot slot) {
    manager_->Close(slot);
    manager_->CheckInvariants();
  }
  const std::vector<BlockId>& Tail(SequenceSlot slot) const {
    return manager_->sequence(slot).first().tail;
  }
};

TEST_F(BlockManagerForkTest, ForkSharesEveryBlockAndTakesNone) {
  const SequenceSlot parent = Compute(Prompt(1, 10));
  const int32_t available = manager_->num_available();
  const SequenceSlot child = manager_->Fork(parent);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->num_available(), available);
  EXPECT_EQ(Tail(child), Tail(parent));
  EXPECT_EQ(manager_->sequence(child).num_settled, 10);
  EXPECT_EQ(manager_->NumReleasable(parent), 0);
  EXPECT_EQ(manager_->CountCovered(child, 0, 8, 8).num_own, 0);
}

TEST_F(BlockManagerForkTest, CannotForkWhatIsAboutToMove) {
  const SequenceSlot slot = Compute(Prompt(1, 8));
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  EXPECT_FALSE(manager_->CanFork(slot));
  EXPECT_DEATH(manager_->Fork(slot), "");
}

TEST_F(BlockManagerForkTest, CannotForkWithoutAnOpenSlot) {
  const SequenceSlot slot = Compute(Prompt(1, 5));
  for (int32_t i = 0; i < 3; ++i) manager_->Fork(slot);
  EXPECT_FALSE(manager_->CanFork(slot));
}

TEST_F(BlockManagerForkTest, FirstWriterLeavesTheSharedBlock) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot child = manager_->Fork(parent);
  const BlockId shared = Tail(parent)[1];
  EXPECT_EQ(manager_->BlocksNeeded(child, 1), 1);
  const std::vector<CopyOnWrite> copies = ReserveOne({child});
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].slot, child);
  EXPECT_EQ(copies[0].blocks.source, shared);
  EXPECT_EQ(copies[0].blocks.destination, Tail(child)[1]);
  EXPECT_EQ(copies[0].num_tokens, 2);
  EXPECT_EQ(Tail(parent)[1], shared);
  EXPECT_NE(Tail(child)[1], shared);
  EXPECT_EQ(Tail(child)[0], Tail(parent)[0]);
}

TEST_F(BlockManagerForkTest, CopiesTheFirstRowsOfACachedBlock) {
  const std::vector<int32_t> cached = Prompt(1, 8);
  const SequenceSlot first = Compute(cached);
  const std::vector<BlockId> blocks = Tail(first);
  Close(first);
  std::vector<int32_t> prompt = Prompt(1, 7);
  prompt.insert(prompt.end(), {7, 7});  // ends in the third block
  PrefixMatch match = MatchPart(prompt, 8);
  EXPECT_EQ(match.num_tokens, 7);
  EXPECT_EQ(match.blocks, blocks);
  EXPECT_TRUE(match.has_part);
  EXPECT_TRUE(match.cost.part_is_reclaimable);
  EXPECT_EQ(match.cost.num_reclaimable, 1);
  EXPECT_EQ(match.num_blocks(), 1);
  const int32_t available = manager_->num_available();
  const SequenceSlot slot = manager_->Open(Chain(prompt), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(slot).num_settled, 7);
  EXPECT_EQ(manager_->num_available(), available - 2);
  EXPECT_EQ(manager_->BlocksNeeded(slot, 2), 2);  // the copy, and one more
  const std::vector<CopyOnWrite> copies = ReserveOne({slot});
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0], (CopyOnWrite{slot, {blocks[1], Tail(slot)[1]}, 3}));
  EXPECT_NE(Tail(slot)[1], blocks[1]);
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, prompt, 1);
  // Its second block is published beside the one that was copied.
  EXPECT_EQ(Match(prompt).blocks, Tail(slot));
  EXPECT_EQ(Match(cached).blocks, blocks);
  EXPECT_EQ(manager_->num_available(), available - 2);
}

}  // namespace
}  // namespace blockmgr
