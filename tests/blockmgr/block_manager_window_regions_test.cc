#include <cstdint>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/block_tables.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// One window group of 16 tokens, four to a page.
class WindowRegionsTest : public WindowsTest {
 protected:
  void SetUp() override { Make(TwoByTwo(60, 0, {16}), 20); }

  // All of the tokens computed at once.
  SequenceSlot Computed(int32_t num_tokens, int32_t kind = 1) {
    tokens_ = Prompt(kind, 60);
    const SequenceSlot slot = manager_->Open({}, {});
    EXPECT_TRUE(Reserve(slot, num_tokens));
    Commit(slot, tokens_, num_tokens);
    return slot;
  }
  std::vector<BlockId> Order(SequenceSlot slot, int32_t cut, int32_t num_blocks,
                             int32_t num_fresh) {
    std::vector<BlockId> destinations;
    EXPECT_TRUE(
        manager_->ReserveEviction(slot,
                                  {.group = 1,
                                   .cut = cut,
                                   .page_total = int64_t{num_blocks} * 4,
                                   .num_fresh = num_fresh},
                                  &destinations));
    manager_->CheckInvariants();
    return destinations;
  }
  // Keeps so many entries of every head.
  EvictionReceipt Evict(SequenceSlot slot, int32_t cut, int32_t kept,
                        int32_t num_blocks, int32_t num_fresh) {
    Order(slot, cut, num_blocks, num_fresh);
    const std::vector<int32_t> counts(4, kept);
    EXPECT_OK(manager_->ValidateCounts(slot, 1, counts));
    const EvictionReceipt receipt = manager_->CommitEviction(slot, 1, counts);
    manager_->CheckInvariants();
    return receipt;
  }
  void Decode(SequenceSlot slot, int32_t num_tokens) {
    for (int32_t i = 0; i < num_tokens; ++i) {
      ASSERT_TRUE(Reserve(slot, 1));
      Commit(slot, tokens_, 1);
    }
  }

  std::vector<int32_t> tokens_;
};

TEST_F(WindowRegionsTest, IsReleasedWholeWhenItsCutFallsOut) {
  const SequenceSlot slot = Computed(41);
  // Positions 25 to 40 are in the window: pages 6 to 10.
  EXPECT_EQ(NumHeld(slot, 1), 5);
  const CoveredBlocks covered = manager_->CountCovered(slot, 1, 40, 41);
  EXPECT_EQ(covered.num_blocks, 4);
  EXPECT_EQ(covered.num_own, 4);
  const EvictionReceipt receipt = Evict(slot, 40, 4, 1, 1);
  EXPECT_EQ(receipt.freed_blocks, 3);
  EXPECT_EQ(receipt.evicted_entries, 4 * (16 - 4));
  EXPECT_EQ(manager_->sequence(slot).groups[1].cut(), 40);
  EXPECT_EQ(NumHeld(slot, 1), 1);
  EXPECT_EQ(manager_->NumBlocks(slot), 11 + 1 + 1);
  EXPECT_THAT(manager_->DeriveRegion(slot, 1).kept(), Each(4));
  // Until position 39, and one more to go back to, is out of the window.
  Decode(slot, 14);
  EXPECT_EQ(manager_->sequence(slot).num_settled, 55);
  EXPECT_NE(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_EQ(manager_->NumBlocks(slot), 14 + 4 + 1);
  ASSERT_TRUE(Reserve(slot, 1));
  EXPECT_EQ(manager_->NumFalling(slot), 1);
  Commit(slot, tokens_, 1);
  EXPECT_EQ(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_EQ(manager_->NumBlocks(slot), 14 + 4);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 59);
}

TEST_F(WindowRegionsTest, GoesOnFromTheRegionThatIsStillInTheWindow) {
  const SequenceSlot slot = Computed(41);
  Evict(slot, 40, 4, 1, 0);
  Decode(slot, 8);
  const CoveredBlocks covered = manager_->CountCovered(slot, 1, 48, 49);
  EXPECT_EQ(covered.num_blocks, 1 + 2);
  Order(slot, 48, 2, 0);
  const std::vector<int32_t> too_many(4, 4 + 8 + 1);
  EXPECT_THAT(
      manager_->ValidateCounts(slot, 1, too_many),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 to 12")));
  const std::vector<int32_t> counts = {5, 8, 0, 8};
  ASSERT_OK(manager_->ValidateCounts(slot, 1, counts));
  EXPECT_EQ(manager_->CommitEviction(slot, 1, counts).evicted_entries,
            4 * 12 - 21);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(slot).groups[1].cut(), 48);
  // What is past by then is not gone on from.
  Decode(slot, 11);
  EXPECT_EQ(manager_->CountCovered(slot, 1, 56, 63).num_blocks, 2);
}

TEST_F(WindowRegionsTest, NothingOfItIsPublishedWithoutARegionOfGroup0) {
  tokens_ = Prompt(1, 60);
  const SequenceSlot slot = manager_->Open(Chain(tokens_), {});
  ASSERT_TRUE(Reserve(slot, 41));
  const std::vector<BlockId> own = Order(slot, 40, 2, 0);
  Commit(slot, tokens_, 41);
  // What was computed before it is, but for the blocks that it takes.
  EXPECT_EQ(Match(tokens_).num_tokens, 24);
  manager_->CommitEviction(slot, 1, std::vector<int32_t>(4, 8));
  manager_->CheckInvariants();
  EXPECT_EQ(Match(tokens_).num_tokens, 24);
  Decode(slot, 15);
  EXPECT_EQ(manager_->sequence(slot).chain_serial, kNoSerial);
  // The rest was computed over it: only by the name of a region that stands for
  // that, too, it can be found.
  EXPECT_EQ(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_TRUE(Compress(slot, 52, tokens_).published);
  manager_->CheckInvariants();
  EXPECT_EQ(MatchRegion(tokens_).num_tokens, 56);
}

// A compressed prefix of 44 tokens, evicted from in both groups.
class SharedWindowRegionsTest : public WindowRegionsTest {
 protected:
  // Who computed and published it. Two blocks have the region of the window.
  SequenceSlot Published() {
    tokens_ = Prompt(1, 60);
    const SequenceSlot slot = manager_->Open(Chain(tokens_), {});
    EXPECT_TRUE(Reserve(slot, 44));
    Commit(slot, tokens_, 44);
    Evict(slot, 40, 6, 2, 2);
    EXPECT_TRUE(Compress(slot, 40, tokens_).cached);
    manager_->CheckInvariants();
    return slot;
  }
  // The longest prefix of at most so many tokens.
  PrefixMatch MatchUpTo(int32_t max_tokens) const {
    const auto limit = [&](int32_t) { return max_tokens; };
    const RegionQuery query{
        .plan = "p", .any_history = true, .max_tokens_over = limit};
    return manager_->Match(Chain(tokens_), tokens_, 0, &query);
  }
};

TEST_F(SharedWindowRegionsTest, IsFoundWithTheRegionOfGroup0) {
  const SequenceSlot slot = Published();
  const PrefixMatch match = MatchUpTo(60);
  EXPECT_EQ(match.num_tokens, 44);
  // The page after the cut, and the region.
  EXPECT_THAT(match.window_blocks, SizeIs(1));
  EXPECT_EQ(match.num_window_blocks, 1 + 2);
  EXPECT_EQ(match.num_moving, 1 + 2);
  EXPECT_EQ(match.num_reclaimable, 0);
  const int32_t available = manager_->num_available();
  const SequenceSlot other = manager_->Open(Chain(tokens_), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->num_available(), available);
  EXPECT_EQ(manager_->NumBlocks(other), match.num_blocks());
  EXPECT_EQ(manager_->sequence(other).groups[1].region,
            manager_->sequence(slot).groups[1].region);
  EXPECT_EQ(manager_->sequence(other).groups[1].region_length, 44);
  EXPECT_FALSE(manager_->CanGoBack(other, 43));
  // What either computes over it, the other finds.
  ASSERT_TRUE(Reserve(other, 8));
  Commit(other, tokens_, 8);
  EXPECT_EQ(MatchUpTo(60).num_tokens, 52);
  manager_->Close(slot);
  manager_->Close(other);
  EXPECT_EQ(manager_->num_available(), 59);
  EXPECT_EQ(MatchUpTo(60).num_reclaimable, MatchUpTo(60).num_blocks());
}

TEST_F(SharedWindowRegionsTest, IsNotNeededWhereTheWindowHasMovedOn) {
  const SequenceSlot slot = Published();
  Decode(slot, 11);
  EXPECT_NE(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_EQ(MatchUpTo(52).num_window_blocks, 3 + 2);
  Decode(slot, 5);
  EXPECT_EQ(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_EQ(MatchUpTo(60).num_tokens, 60);
  EXPECT_EQ(MatchUpTo(60).num_window_blocks, 4);
  // Nobody uses it any more, nor the page after its cut: they are reclaimed
  // alone.
  EXPECT_EQ(MatchUpTo(52).num_reclaimable, 2 + 1);
  manager_->ResetPrefixCache();
  manager_->CheckInvariants();
  EXPECT_EQ(MatchUpTo(52).cached, nullptr);
  const PrefixMatch match = MatchUpTo(60);
  EXPECT_EQ(match.num_tokens, 60);
  const SequenceSlot other = manager_->Open(Chain(tokens_), match);
  manager_->CheckInvariants();
  EXPECT_EQ(manager_->sequence(other).groups[1].region, nullptr);
  EXPECT_EQ(manager_->sequence(other).groups[1].region_length, 44);
}

TEST_F(SharedWindowRegionsTest, LeavesTheCacheWithTheRegionOfGroup0) {
  const SequenceSlot slot = Published();
  manager_->Close(slot);
  const PrefixMatch match = MatchUpTo(60);
  const std::vector<BlockId> lost = match.cached->record->blocks;
  const int32_t available = manager_->num_available();
  ASSERT_OK(manager_->LoseBlocks(lost));
  manager_->CheckInvariants();
  EXPECT_EQ(MatchUpTo(60).cached, nullptr);
  EXPECT_EQ(manager_->num_available(), available);
  // The engine knows it by the other's name.
  std::vector<RegionId> dropped;
  manager_->TakeDroppedRegions(&dropped);
  EXPECT_THAT(dropped, SizeIs(1));
}

TEST_F(SharedWindowRegionsTest, WhoEvictsAgainLeavesItToTheOthers) {
  const SequenceSlot slot = Published();
  const SequenceSlot other = manager_->Open(Chain(tokens_), MatchUpTo(44));
  ASSERT_TRUE(Reserve(other, 8));
  Commit(other, tokens_, 8);
  // Of region and two pages, only the pages that it computed are its own.
  EXPECT_EQ(manager_->CountCovered(other, 1, 48, 52).num_blocks, 2 + 2);
  EXPECT_EQ(manager_->CountCovered(other, 1, 48, 52).num_own, 1);
  const std::shared_ptr<const RegionRecord> was =
      manager_->sequence(slot).groups[1].region;
  Evict(other, 48, 6, 2, 1);
  EXPECT_NE(manager_->sequence(other).groups[1].region, was);
  EXPECT_EQ(manager_->sequence(slot).groups[1].region, was);
  EXPECT_EQ(MatchUpTo(44).num_tokens, 44);
  // The last who holds it may write to it: nobody finds it then.
  manager_->Close(other);
  ASSERT_TRUE(Reserve(slot, 8));
  Commit(slot, tokens_, 8);
  EXPECT_EQ(manager_->CountCovered(slot, 1, 48, 52).num_own, 2 + 2);
  Order(slot, 48, 3, 0);
  EXPECT_EQ(MatchUpTo(44).cached, nullptr);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 59);
}

TEST_F(SharedWindowRegionsTest, LeavesForTheHostTierAndTheCacheKeepsIt) {
  const SequenceSlot slot = Published();
  std::vector<BlockTransfer> out;
  const SwapId swap = manager_->SwapOut(slot, &out);
  ASSERT_NE(swap, kNoSwap);
  manager_->Close(slot);
  PrefixMatch match = MatchUpTo(44);
  EXPECT_EQ(match.num_tokens, 44);
  // Nothing need come back; of a shorter match nothing is of use.
  manager_->MatchSwapped(swap, 44, 44, &match);
  EXPECT_EQ(match.swap, kNoSwap);
  PrefixMatch back;
  manager_->MatchSwapped(swap, 44, 44, &back);
  EXPECT_EQ(back.num_ins(), static_cast<int32_t>(out.size()));
  EXPECT_EQ(back.num_reclaimable, 0);
}

TEST_F(WindowRegionsTest, LeavesForTheHostTierAndComesBack) {
  const SequenceSlot slot = Computed(41);
  Evict(slot, 40, 6, 2, 2);
  const std::shared_ptr<const RegionRecord> was =
      manager_->sequence(slot).groups[1].region;
  ASSERT_EQ(was->blocks.size(), 2u);
  const std::vector<BlockId> window =
      BlocksByPage(manager_->sequence(slot).groups[1]);
  const std::vector<BlockId> tail = manager_->sequence(slot).first().tail;
  std::vector<BlockTransfer> out;
  const SwapId swap = manager_->SwapOut(slot, &out);
  ASSERT_NE(swap, kNoSwap);
  // The tail, then the region of the window group, and the page behind it.
  ASSERT_EQ(out.size(), 11u + 2 + 1);
  EXPECT_EQ(out[10].block, tail[10]);
  EXPECT_EQ(out[11].block, was->blocks[0]);
  EXPECT_EQ(out[12].block, was->blocks[1]);
  EXPECT_EQ(out[13].block, window[10]);
  manager_->Close(slot);
  manager_->CheckInvariants();

  PrefixMatch match;
  manager_->MatchSwapped(swap, 41, 41, &match);
  EXPECT_EQ(match.num_ins(), 14);
  EXPECT_EQ(match.num_window_region_blocks, 2);
  const SequenceSlot back = manager_->Open(Chain(tokens_), match);
  std::vector<BlockTransfer> in;
  manager_->SwapIn(back, match, &in);
  manager_->CheckInvariants();
  const GroupCache& cache = manager_->sequence(back).groups[1];
  ASSERT_NE(cache.region, nullptr);
  EXPECT_EQ(cache.cut(), 40);
  EXPECT_EQ(cache.region_length, 41);
  EXPECT_EQ(cache.region->kept, was->kept);
  EXPECT_NE(cache.region->id, was->id);
  ASSERT_EQ(in.size(), 14u);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i].host, out[i].host);
  EXPECT_EQ(cache.region->blocks,
            (std::vector<BlockId>{in[11].block, in[12].block}));
  EXPECT_EQ(cache.block(10), in[13].block);
  EXPECT_EQ(cache.block(9), kNullBlock);
  // What it computes is found by nobody, nor the region kept too long.
  EXPECT_EQ(manager_->sequence(back).chain_serial, kNoSerial);
  manager_->Dispatch(StepId{100});
  manager_->Acknowledge(StepId{100});
  Decode(back, 15);
  EXPECT_EQ(manager_->sequence(back).groups[1].region, nullptr);
  manager_->CheckInvariants();
}

TEST_F(WindowRegionsTest, ALostBlockOfItIsTheEndOfTheSequence) {
  for (const bool is_pending : {false, true}) {
    const SequenceSlot slot = Computed(41);
    std::vector<BlockId> lost;
    if (is_pending) {
      lost = Order(slot, 40, 1, 0);
    } else {
      Evict(slot, 40, 4, 1, 0);
      lost = manager_->sequence(slot).groups[1].region->blocks;
    }
    const absl::StatusOr<LossReport> report =
        manager_->LoseBlocks(std::span(lost));
    ASSERT_OK(report);
    manager_->CheckInvariants();
    EXPECT_THAT(report->sequences, ::testing::ElementsAre(CutSequence{slot, 0}))
        << is_pending;
    manager_->Close(slot);
    EXPECT_EQ(manager_->num_available(), 59);
  }
}

using WindowRegionsDeathTest = WindowRegionsTest;

TEST_F(WindowRegionsDeathTest, WhatIsCoveredFollowsFromWhatIsReserved) {
  const SequenceSlot slot = Computed(41);
  Order(slot, 40, 1, 1);
  ASSERT_TRUE(Reserve(slot, 1));
  EXPECT_DEATH(manager_->Commit(slot, 1, tokens_, Chain(tokens_)), "");
  EXPECT_DEATH(manager_->CutBack(slot, 41), "");
  manager_->Rollback(slot, 1);
  EXPECT_DEATH(manager_->Rollback(slot, 1), "");
}

}  // namespace
}  // namespace blockmgr
