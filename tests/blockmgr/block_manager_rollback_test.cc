#include <cstdint>
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

TEST_F(BlockManagerRollbackTest, RejectedTokensAreNeverFound) {
  const std::vector<int32_t> drafted = Prompt(1, 8);
  std::vector<int32_t> tokens = drafted;
  const SequenceSlot slot = Compute(Prompt(1, 4));
  ASSERT_TRUE(Reserve(slot, 4));
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, tokens, 2);
  manager_->Rollback(slot, 2);
  tokens[6] = tokens[7] = 7;
  ASSERT_TRUE(Reserve(slot, 2));
  Dispatch(2);
  Acknowledge(2);
  Commit(slot, tokens, 2);
  EXPECT_EQ(Match(drafted).blocks.size(), 1u);
  EXPECT_EQ(Match(tokens).blocks, At(slot).first().tail);
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

// The copy of a fork was made by a step: there is no way back to the source.
TEST_F(BlockManagerRollbackTest, CopyOfADispatchedStepStays) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot child = manager_->Fork(parent);
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const std::vector<TokenDemand> demands = {{child, 3}};
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  ASSERT_EQ(copies.size(), 1u);
  Dispatch(1);
  manager_->Rollback(child, 3);
  manager_->CheckInvariants();
  EXPECT_EQ(At(child).first().tail.back(), copies[0].blocks.destination);
  copies.clear();
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  EXPECT_THAT(copies, IsEmpty());
}

TEST_F(BlockManagerRollbackTest, CutBackIntoACachedBlockCopiesBeforeItWrites) {
  const std::vector<int32_t> prompt = Prompt(1, 8);
  const SequenceSlot slot = Compute(prompt);
  const std::vector<BlockId> before = At(slot).first().tail;
  manager_->CutBack(slot, 6);
  manager_->CheckInvariants();
  EXPECT_EQ(At(slot).first().tail, before);
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const std::vector<TokenDemand> demands = {{slot, 2}};
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].blocks.source, before[1]);
  EXPECT_EQ(copies[0].num_tokens, 2);
  std::vector<int32_t> other = prompt;
  other[6] = other[7] = 7;
  Dispatch(1);
  Acknowledge(1);
  Commit(slot, other, 2);
  EXPECT_EQ(Match(prompt).blocks, before);
  EXPECT_EQ(Match(other).blocks, At(slot).first().tail);
}

// Where the leaver would come back, its rows must still be there.
TEST_F(BlockManagerRollbackTest, ShorterSharerNeverWritesOverALeaversRows) {
  const SequenceSlot longer = Compute(Prompt(1, 7));
  const SequenceSlot shorter = manager_->Fork(longer);
  manager_->CutBack(shorter, 5);
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const std::vector<TokenDemand> demands = {{longer, 1}, {shorter, 1}};
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].num_tokens, 3);
  EXPECT_EQ(copies[1].num_tokens, 1);
  manager_->Abort(longer, 1);
  manager_->CheckInvariants();
  EXPECT_EQ(At(longer).first().tail.back(), copies[0].blocks.source);
  EXPECT_NE(At(shorter).first().tail.back(), copies[0].blocks.source);
}

TEST_F(BlockManagerRollbackTest, CutBackToItsRegionPublishesOverItAgain) {
  const std::vector<int32_t> prompt = Prompt(1, 16);
  const BlockChain chain = Chain(prompt);
  const SequenceSlot slot = Compute({prompt.begin(), prompt.begin() + 12});
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  const RegionPublication publication = {
      .name = {.plan = "p", .history = "a", .length = 12},
      .chain = &chain,
      .tokens = prompt};
  ASSERT_TRUE(
      manager_
          ->CommitEviction(slot, 0, std::vector<int32_t>(4, 4), &publication)
          .published);
  ASSERT_TRUE(Reserve(slot, 4));
  Commit(slot, prompt, 4);
  manager_->CutBack(slot, 12);
  // Other tokens than before follow the region.
  std::vector<int32_t> other = prompt;
  for (int32_t i = 12; i < 16; ++i) other[i] = 7;
  ASSERT_TRUE(Reserve(slot, 4));
  Commit(slot, other, 4);
  const auto limit = [](int32_t) { return 16; };
  const RegionQuery query = {
      .plan = "p", .history = "a", .max_tokens_over = limit};
  for (const std::vector<int32_t>& tokens : {prompt, other}) {
    const PrefixMatch match =
        manager_->Match(Chain(tokens), tokens, 16, &query);
    EXPECT_NE(match.cached, nullptr);
    EXPECT_EQ(match.num_tokens, 16);
  }
}

TEST_F(BlockManagerRollbackTest, CutBackBehindItsRegionsPagePublishesNoMore) {
  const std::vector<int32_t> prompt = Prompt(1, 16);
  const BlockChain chain = Chain(prompt);
  const SequenceSlot slot = Compute({prompt.begin(), prompt.begin() + 12});
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  const RegionPublication publication = {
      .name = {.plan = "p", .history = "a", .length = 12},
      .chain = &chain,
      .tokens = prompt};
  manager_->CommitEviction(slot, 0, std::vector<int32_t>(4, 4), &publication);
  manager_->CutBack(slot, 8);
  ASSERT_TRUE(Reserve(slot, 8));
  // What was computed before the compression is now computed over it.
  EXPECT_FALSE(manager_->WillPublish(slot, 8));
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

TEST_F(BlockManagerRollbackTest, WhatFollowsALostBlockIsNeverFoundAgain) {
  const std::vector<int32_t> prompt = Prompt(1, 12);
  const SequenceSlot slot = Compute(prompt);
  const std::vector<BlockId> blocks = At(slot).first().tail;
  manager_->Close(slot);
  const std::vector<BlockId> lost = {blocks[0]};
  const absl::StatusOr<LossReport> report = manager_->LoseBlocks(lost);
  manager_->CheckInvariants();
  ASSERT_OK(report);
  EXPECT_THAT(report->sequences, IsEmpty());
  EXPECT_EQ(report->dropped_blocks, 3);
  EXPECT_EQ(manager_->stats().free_blocks, 9);
  Compute({prompt.begin(), prompt.begin() + 4});
  EXPECT_EQ(Match(prompt).num_tokens, 4);
}

TEST_F(BlockManagerRollbackTest, LostRegionLeavesNothing) {
  const SequenceSlot slot = Compute(Prompt(1, 10));
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 4, .num_fresh = 1}, &destinations));
  manager_->CommitEviction(slot, 0, std::vector<int32_t>(4, 4));
  const SequenceSlot child = manager_->Fork(slot);
  const absl::StatusOr<LossReport> report = manager_->LoseBlocks(destinations);
  manager_->CheckInvariants();
  ASSERT_OK(report);
  EXPECT_THAT(report->sequences, UnorderedElementsAre(CutSequence{slot, 0},
                                                      CutSequence{child, 0}));
  EXPECT_EQ(At(slot).first().region, nullptr);
  EXPECT_EQ(manager_->num_available(), 9);
}

// The engine may have moved entries into the blocks that the order names.
TEST_F(BlockManagerRollbackTest, LossUnderAPendingOrderCountsItsBlocksToo) {
  const SequenceSlot slot = Compute(Prompt(1, 12));
  std::vector<BlockId> destinations;
  ASSERT_TRUE(manager_->ReserveEviction(
      slot, {.cut = 8, .page_total = 8, .num_fresh = 1}, &destinations));
  const std::vector<BlockId> lost = {At(slot).first().tail[2]};
  const absl::StatusOr<LossReport> report = manager_->LoseBlocks(lost);
  manager_->CheckInvariants();
  ASSERT_OK(report);
  EXPECT_THAT(report->sequences, ElementsAre(CutSequence{slot, 0}));
  EXPECT_FALSE(At(slot).first().pending != nullptr);
}

TEST_F(BlockManagerRollbackTest, LossOfACopysSourceTakesTheCopyBack) {
  const SequenceSlot parent = Compute(Prompt(1, 6));
  const SequenceSlot child = manager_->Fork(parent);
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const std::vector<TokenDemand> demands = {{child, 1}};
  ASSERT_TRUE(manager_->Reserve(demands, &offsets, &blocks, &copies));
  manager_->Close(parent);
  const std::vector<BlockId> lost = {copies[0].blocks.source};
  const absl::StatusOr<LossReport> report = manager_->LoseBlocks(lost);
  manager_->CheckInvariants();
  ASSERT_OK(report);
  EXPECT_THAT(report->sequences, ElementsAre(CutSequence{child, 4}));
  EXPECT_EQ(manager_->num_available(), 8);
}

TEST_F(BlockManagerRollbackTest, UnknownLostBlockIsRefusedByItsPlace) {
  const SequenceSlot slot = Compute(Prompt(1, 6));
  const uint64_t hash = manager_->StateHash();
  const std::vector<BlockId> lost = {At(slot).first().tail[0], BlockId{10}};
  EXPECT_THAT(manager_->LoseBlocks(lost),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("blocks[1]: expected 1 to 9, got 10")));
  EXPECT_EQ(manager_->StateHash(), hash);
}

}  // namespace
}  // namespace blockmgr
