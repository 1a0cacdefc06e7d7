#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
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
  EXPECT_EQ(manager_->CountFalling(slot).num_own, 1);
  Commit(slot, tokens_, 1);
  EXPECT_EQ(manager_->sequence(slot).groups[1].region, nullptr);
  EXPECT_EQ(manager_->NumBlocks(slot), 14 + 4);
  manager_->Close(slot);
  EXPECT_EQ(manager_->num_available(), 59);
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
  EXPECT_EQ(match.cost.num_moving, 1 + 2);
  EXPECT_EQ(match.cost.num_reclaimable, 0);
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
  EXPECT_EQ(MatchUpTo(60).cost.num_reclaimable, MatchUpTo(60).num_blocks());
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
