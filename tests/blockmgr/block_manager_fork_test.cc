#include <cstdint>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

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
  // Replaces [0, 8) of a sequence by a region on one fresh block.
  void Compress(SequenceSlot slot) {
    std::vector<BlockId> destinations;
    ASSERT_TRUE(manager_->ReserveEviction(
        slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
    manager_->CommitEviction(slot, 0, std::vector<int32_t>(4, 4));
    manager_->CheckInvariants();
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

// A block of four tokens: one settled, two in flight.
TEST_F(BlockManagerForkTest, ForkSharesWhatIsSettledAndNoMore) {
  const SequenceSlot parent = Compute(Prompt(1, 9));
  ASSERT_TRUE(Reserve(parent, 7));
  manager_->Dispatch(StepId{20});
  const std::vector<BlockId> tail = Tail(parent);
  const SequenceSlot child = manager_->Fork(parent);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(child).num_settled, 9);
  EXPECT_EQ(manager_->sequence(child).num_reserved, 9);
  EXPECT_EQ(Tail(child), std::vector(tail.begin(), tail.begin() + 3));
  // The parent has gone on before: it writes in place, the child elsewhere.
  EXPECT_EQ(manager_->BlocksNeeded(parent, 1), 1);  // behind its four blocks
  EXPECT_EQ(manager_->BlocksNeeded(child, 1), 1);   // the copy
  EXPECT_EQ(manager_->BlocksNeeded(child, 4), 2);
}

TEST_F(BlockManagerForkTest, OpensOnTheFirstTokensOfASequence) {
  const std::vector<int32_t> prompt = Prompt(1, 10);
  const SequenceSlot parent = Compute(prompt);
  const PrefixMatch match = manager_->MatchFork(parent, 7);
  EXPECT_EQ(match.num_tokens, 7);
  EXPECT_EQ(match.source, parent);
  EXPECT_EQ(match.num_blocks(), 1);  // full ones
  EXPECT_EQ(match.record(), nullptr);
  const SequenceSlot child = manager_->Open(Chain(prompt), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(child).num_settled, 7);
  EXPECT_EQ(Tail(child).size(), 2u);
  EXPECT_EQ(manager_->BlocksNeeded(child, 1), 1);   // the copy
  EXPECT_EQ(manager_->BlocksNeeded(parent, 1), 0);  // its block has room
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

TEST_F(BlockManagerForkTest, SourceWaitsForTheStepThatCopiesIt) {
  const SequenceSlot parent = Compute(Prompt(1, 2));
  const SequenceSlot child = manager_->Fork(parent);
  Dispatch(1);
  EXPECT_EQ(ReserveOne({child}).size(), 1u);
  manager_->Close(parent);
  // Held for a step that is not dispatched yet, so nothing can free it.
  Acknowledge(1);
  EXPECT_EQ(manager_->num_available(), 7);
  Dispatch(2);
  EXPECT_EQ(manager_->num_available(), 7);
  EXPECT_EQ(manager_->num_fenced(), 1);
  Acknowledge(2);
  EXPECT_EQ(manager_->num_available(), 8);
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
  EXPECT_TRUE(match.part_is_reclaimable);
  EXPECT_EQ(match.num_reclaimable, 1);
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

TEST_F(BlockManagerForkTest, APartOfTheFirstBlockWillDo) {
  const SequenceSlot first = Compute(Prompt(1, 4));
  const std::vector<int32_t> prompt = Prompt(1, 3);
  const PrefixMatch match = MatchPart(prompt, 2);
  EXPECT_EQ(match.num_tokens, 2);
  EXPECT_FALSE(match.part_is_reclaimable);  // `first` is open
  const SequenceSlot slot = manager_->Open(Chain(prompt), match);
  manager_->CheckInvariants();
  Close(first);
  EXPECT_EQ(ReserveOne({slot}).size(), 1u);
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, prompt, 1);
  Close(slot);
  EXPECT_EQ(manager_->stats().used_blocks, 0);
}

TEST_F(BlockManagerForkTest, APartIsDroppedWhole) {
  Close(Compute(Prompt(1, 8)));
  const std::vector<int32_t> prompt = Prompt(1, 7);
  PrefixMatch match = MatchPart(prompt, 6);
  EXPECT_EQ(match.num_tokens, 6);
  match.DropPart(4);
  const PrefixMatch plain = Match(prompt);
  EXPECT_EQ(match.num_tokens, plain.num_tokens);
  EXPECT_EQ(match.blocks, plain.blocks);
  EXPECT_EQ(match.num_blocks(), plain.num_blocks());
  EXPECT_FALSE(match.part_is_reclaimable);
}

TEST_F(BlockManagerForkTest, AnAbortedStartOnAPartCopiesLater) {
  Close(Compute(Prompt(1, 8)));
  const std::vector<int32_t> prompt = Prompt(1, 7);
  const SequenceSlot slot = manager_->Open(Chain(prompt), MatchPart(prompt, 6));
  const std::vector<BlockId> tail = Tail(slot);
  EXPECT_EQ(ReserveOne({slot}).size(), 1u);
  manager_->Abort(slot, 1);
  manager_->CheckInvariants();
  EXPECT_EQ(Tail(slot), tail);
  EXPECT_EQ(ReserveOne({slot}).size(), 1u);
  EXPECT_NE(Tail(slot), tail);
}

TEST_F(BlockManagerForkTest, EveryForkPublishesItsOwnContinuation) {
  std::vector<int32_t> ours = Prompt(1, 6);
  const SequenceSlot parent = Compute(ours);
  const SequenceSlot child = manager_->Fork(parent);
  std::vector<int32_t> theirs = ours;
  ours.insert(ours.end(), {7, 7});
  theirs.insert(theirs.end(), {8, 8});
  for (int32_t i = 0; i < 2; ++i) ReserveOne({parent, child});
  Dispatch(1);
  Acknowledge(1);
  Commit(parent, ours, 2);
  Commit(child, theirs, 2);
  EXPECT_EQ(Match(ours).blocks, Tail(parent));
  EXPECT_EQ(Match(theirs).blocks, Tail(child));
}

TEST_F(BlockManagerForkTest, CompressingAForkLeavesTheOther) {
  const SequenceSlot parent = Compute(Prompt(1, 10));
  const SequenceSlot child = manager_->Fork(parent);
  const std::vector<BlockId> before = Tail(parent);
  std::vector<BlockId> destinations;
  // None of the shared blocks may be written to.
  EXPECT_FALSE(manager_->ReserveEviction(
      child, {.cut = 8, .page_total = 4, .num_fresh = 0}, &destinations));
  Compress(child);
  EXPECT_EQ(Tail(parent), before);
  EXPECT_EQ(manager_->sequence(parent).first().region, nullptr);
  EXPECT_EQ(manager_->sequence(child).cut(), 8);
  EXPECT_THAT(Tail(child), ElementsAre(before[2]));
}

TEST_F(BlockManagerForkTest, ForksShareARegionUntilTheLastIsClosed) {
  const SequenceSlot parent = Compute(Prompt(1, 9));
  Compress(parent);
  ASSERT_TRUE(manager_->ResetPrefixCache().num_in_use == 0);
  const SequenceSlot child = manager_->Fork(parent);
  const BlockId block = manager_->sequence(parent).first().region->blocks[0];
  EXPECT_EQ(manager_->sequence(child).first().region,
            manager_->sequence(parent).first().region);
  EXPECT_EQ(manager_->CountCovered(child, 0, 8, 8).num_own, 0);
  EXPECT_EQ(ReserveOne({parent, child}).size(), 1u);
  Dispatch(1);
  Acknowledge(1);
  manager_->Close(parent);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(child).first().region->blocks[0], block);
  manager_->Close(child);
  EXPECT_EQ(manager_->stats().free_blocks, 9);
}

}  // namespace
}  // namespace blockmgr
