#include "blockmgr/eviction_blocks.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_hash.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// A sequence with the blocks 1 to 4 of a pool of 7, four pages per block.
class EvictionBlocksTest : public testing::Test {
 protected:
  EvictionBlocksTest() : layout_(TwoByTwo(8)), blocks_(layout_), tail_(4) {
    blocks_.Take(tail_);
  }
  // An order of `num_blocks` destinations, of which some are fresh.
  bool Take(int64_t num_blocks, int32_t num_fresh) {
    return TakeDestinations(
        layout_, covered(),
        {.cut = 16, .page_total = 4 * num_blocks, .num_fresh = num_fresh},
        RegionId{5}, &blocks_, &pending_);
  }
  HeldBlocks covered() const { return {.tail = tail_}; }

  const ModelLayout layout_;
  CachedPool blocks_;
  std::vector<BlockId> tail_;
  PendingEviction pending_;
};

TEST_F(EvictionBlocksTest, OwnBlocksComeFirstAndInTableOrder) {
  ASSERT_TRUE(Take(3, 1));
  EXPECT_EQ(pending_.region, RegionId{5});
  EXPECT_EQ(pending_.cut, 16);
  EXPECT_EQ(pending_.num_own, 2);
  EXPECT_THAT(pending_.destinations,
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{5}));
  EXPECT_THAT(pending_.page_totals, ElementsAre(12));
}

TEST_F(EvictionBlocksTest, WhatOthersHoldIsNotTaken) {
  blocks_.pool().AddRef(tail_[0]);
  ASSERT_TRUE(Take(3, 0));
  EXPECT_THAT(pending_.destinations,
              ElementsAre(BlockId{2}, BlockId{3}, BlockId{4}));
}

TEST_F(EvictionBlocksTest, ACachedBlockIsTakenLastAndLeavesTheCache) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  BlockChain chain;
  chain.Extend(tokens, layout_.page_size);
  const EntrySerial root = blocks_.cache().AcquireRoot(chain.root());
  bool inserted = false;
  blocks_.cache().Insert(tail_[0], chain.keys()[0], chain, root, tokens, 0,
                         &inserted);
  blocks_.pool().AddRef(tail_[0]);
  ASSERT_TRUE(Take(2, 0));
  EXPECT_THAT(pending_.destinations, ElementsAre(BlockId{2}, BlockId{3}));
  EXPECT_TRUE(blocks_.cache().Contains(tail_[0]));
  pending_ = {};
  ASSERT_TRUE(Take(4, 0));
  EXPECT_FALSE(blocks_.cache().Contains(tail_[0]));
  EXPECT_EQ(blocks_.pool().num_holders(tail_[0]), 1);
}

TEST_F(EvictionBlocksTest, TooFewBlocksChangeNothing) {
  const uint64_t before = blocks_.pool().StateHash();
  EXPECT_FALSE(Take(5, 0));
  EXPECT_FALSE(Take(4, 4));
  EXPECT_EQ(blocks_.pool().StateHash(), before);
  EXPECT_THAT(pending_.destinations, ElementsAre());
}

TEST_F(EvictionBlocksTest, TheRegionKeepsItsBlocksAndTheRestIsReleased) {
  ASSERT_TRUE(Take(3, 1));
  // One destination is enough for what is kept: one page per head.
  const std::vector<int32_t> counts(4, 4);
  const auto region = MakeRegion(layout_, pending_, covered(), counts);
  ASSERT_THAT(region->blocks, ElementsAre(BlockId{1}));
  const EvictionReceipt receipt =
      ReplaceBlocks(layout_, covered(), pending_, *region, &blocks_);
  EXPECT_EQ(receipt.evicted_entries, 4 * 16 - 4 * 4);
  EXPECT_EQ(receipt.freed_blocks, 3);
  EXPECT_EQ(blocks_.pool().num_free(), 6);
  EXPECT_EQ(blocks_.pool().num_holders(BlockId{1}), 1);
}

}  // namespace
}  // namespace blockmgr
