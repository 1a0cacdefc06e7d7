#include "blockmgr/cached_pool.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_hash.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::UnorderedElementsAre;

// Pages of four tokens; blocks 1 to 3.
class CachedPoolTest : public testing::Test {
 protected:
  CachedPoolTest() : blocks_(TwoByTwo(4)) {
    chain_.Extend(tokens_, 4);
    root_ = blocks_.cache().AcquireRoot(chain_.root());
  }
  std::vector<BlockId> Take(size_t count) {
    std::vector<BlockId> blocks(count);
    blocks_.Take(blocks);
    return blocks;
  }
  // Publishes the block with the first page of the tokens.
  void Publish(BlockId block) {
    bool inserted = false;
    blocks_.cache().Insert(block, chain_.keys()[0], chain_, root_, tokens_, 0,
                           &inserted);
    EXPECT_TRUE(inserted);
    blocks_.pool().AddRef(block);
  }

  const std::vector<int32_t> tokens_ = {1, 2, 3, 4};
  BlockChain chain_;
  CachedPool blocks_;
  EntrySerial root_ = kNoSerial;
};

TEST_F(CachedPoolTest, WhatOnlyTheCacheHoldsIsReclaimedWhenNothingIsFree) {
  const std::vector<BlockId> taken = Take(2);
  Publish(taken[0]);
  EXPECT_TRUE(blocks_.IsOwn(taken[0]));
  blocks_.CheckInvariants(std::vector<int32_t>{0, 1, 1, 0});
  blocks_.Release(taken[0]);
  EXPECT_EQ(blocks_.num_cached(), 1);
  EXPECT_EQ(blocks_.num_available(), 2);
  blocks_.CheckInvariants(std::vector<int32_t>{0, 0, 1, 0});
  EXPECT_THAT(Take(2), UnorderedElementsAre(BlockId{3}, taken[0]));
  EXPECT_EQ(blocks_.num_reclaimed(), 1u);
  EXPECT_FALSE(blocks_.cache().Contains(taken[0]));
  blocks_.CheckInvariants(std::vector<int32_t>{0, 1, 1, 1});
}

TEST_F(CachedPoolTest, WhatAStepMayTouchCoolsFirst) {
  const std::vector<BlockId> taken = Take(1);
  Publish(taken[0]);
  blocks_.pool().Dispatch(StepId{1});
  blocks_.Release(taken[0]);
  EXPECT_TRUE(blocks_.IsCooling(Index(taken[0])));
  EXPECT_EQ(blocks_.num_available(), 2);
  EXPECT_EQ(blocks_.num_fenced(), 1);
  blocks_.Acknowledge(StepId{1});
  EXPECT_FALSE(blocks_.IsCooling(Index(taken[0])));
  EXPECT_EQ(blocks_.num_available(), 3);
  blocks_.CheckInvariants(std::vector<int32_t>(4, 0));
}

TEST_F(CachedPoolTest, ASequenceHoldsWhatIsCachedAgain) {
  const std::vector<BlockId> taken = Take(1);
  Publish(taken[0]);
  blocks_.Release(taken[0]);
  blocks_.Hold(taken[0], nullptr);
  EXPECT_EQ(blocks_.num_cached(), 0);
  EXPECT_EQ(blocks_.Reset().num_in_use, 1);
  blocks_.CheckInvariants(std::vector<int32_t>{0, 1, 0, 0});
  blocks_.Release(taken[0]);
  EXPECT_EQ(blocks_.Reset().num_dropped, 1);
  EXPECT_EQ(blocks_.pool().num_free(), 3);
}

TEST_F(CachedPoolTest, ABlockOfTwoSequencesIsNobodysOwn) {
  const std::vector<BlockId> taken = Take(1);
  blocks_.pool().AddRef(taken[0]);
  EXPECT_FALSE(blocks_.IsOwn(taken[0]));
  blocks_.Release(taken[0]);
  EXPECT_TRUE(blocks_.IsOwn(taken[0]));
  EXPECT_FALSE(blocks_.IsOwn(kNullBlock));
}

}  // namespace
}  // namespace blockmgr
