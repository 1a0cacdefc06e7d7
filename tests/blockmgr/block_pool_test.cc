#include "blockmgr/block_pool.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kNumOps = 1'000'000 / kCaseDivisor;

BlockId AllocateOne(BlockPool* pool) {
  std::vector<BlockId> block(1);
  EXPECT_TRUE(pool->Allocate(block));
  return block[0];
}

TEST(BlockPoolTest, FreshPoolHandsOutAscendingIdsButNeverBlockZero) {
  BlockPool pool(4);
  EXPECT_EQ(pool.num_free(), 3);
  std::vector<BlockId> blocks(3);
  ASSERT_TRUE(pool.Allocate(blocks));
  EXPECT_THAT(blocks, ElementsAre(BlockId{1}, BlockId{2}, BlockId{3}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_held(), 3);
  EXPECT_EQ(pool.num_holders(kNullBlock), 0);
}

TEST(BlockPoolTest, TooLargeAllocationChangesNothing) {
  BlockPool pool(4);
  AllocateOne(&pool);
  const uint64_t hash = pool.StateHash();
  std::vector<BlockId> blocks(3, BlockId{77});
  EXPECT_FALSE(pool.Allocate(blocks));
  EXPECT_THAT(blocks, Each(BlockId{77}));
  EXPECT_EQ(pool.StateHash(), hash);
}

TEST(BlockPoolTest, UntouchedBlockIsFreeAtOnce) {
  BlockPool pool(2);
  pool.Dispatch(StepId{1});
  pool.ReleaseUntouched(AllocateOne(&pool));
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPoolTest, UntouchedReleaseKeepsTheFenceOfOtherHolders) {
  BlockPool pool(2);
  const BlockId block = AllocateOne(&pool);
  pool.AddRef(block);
  pool.Dispatch(StepId{1});
  pool.Release(block);
  pool.ReleaseUntouched(block);
  EXPECT_EQ(pool.num_fenced(), 1);
  pool.Acknowledge(StepId{1});
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPoolTest, ForgottenStepsLeaveNoFence) {
  BlockPool pool(3);
  pool.Dispatch(StepId{1});
  pool.Release(AllocateOne(&pool));
  pool.Dispatch(StepId{2});
  pool.Release(AllocateOne(&pool));
  pool.ForgetSteps();
  EXPECT_FALSE(pool.has_steps_in_flight());
  EXPECT_EQ(pool.num_free(), 2);
  pool.Dispatch(StepId{3});
  pool.Acknowledge(StepId{3});
}

TEST(BlockPoolTest, StateHashIgnoresTheOrderOfTheFreeList) {
  BlockPool a(4);
  BlockPool b(4);
  std::vector<BlockId> blocks(3);
  ASSERT_TRUE(a.Allocate(blocks));
  for (const BlockId block : blocks) a.Release(block);
  EXPECT_EQ(a.StateHash(), b.StateHash());
}

TEST(BlockPoolTest, StateHashTellsFencesApart) {
  BlockPool a(3);
  BlockPool b(3);
  for (BlockPool* pool : {&a, &b}) {
    pool->AddRef(AllocateOne(pool));
    pool->Dispatch(StepId{1});
  }
  a.Release(BlockId{1});
  b.ReleaseUntouched(BlockId{1});
  EXPECT_NE(a.StateHash(), b.StateHash());
}

// Holders and the newest step dispatched before each release, kept in maps.
TEST(BlockPoolTest, AgreesWithNaiveModel) {
  int64_t num_ops = 0;
  for (uint64_t seed = 1; num_ops < kNumOps; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t num_blocks = RandomInt(random, 2, 64);
    BlockPool pool(num_blocks);
    std::map<BlockId, int32_t> holders;
    std::map<BlockId, uint64_t> fences;
    uint64_t dispatched = 0;
    uint64_t acknowledged = 0;
    for (int32_t i = 0; i < 1000; ++i, ++num_ops) {
      const bool fills = i / 250 % 2 == 0;
      if (RandomChance(random, 0.2) && dispatched < acknowledged + 4) {
        pool.Dispatch(StepId{++dispatched});
      } else if (RandomChance(random, 0.2) && acknowledged < dispatched) {
        pool.Acknowledge(StepId{++acknowledged});
      } else if (RandomChance(random, fills ? 0.6 : 0.4)) {
        std::vector<BlockId> blocks(RandomInt(random, 0, 4));
        const bool fits = std::ssize(blocks) <= pool.num_free();
        ASSERT_EQ(pool.Allocate(blocks), fits);
        for (size_t j = 0; fits && j < blocks.size(); ++j) {
          ASSERT_GT(Index(blocks[j]), 0);
          ASSERT_TRUE(holders.emplace(blocks[j], 1).second);
          ASSERT_LE(fences[blocks[j]], acknowledged);
        }
      } else if (!holders.empty()) {
        auto held = holders.begin();
        const auto num_held = static_cast<int32_t>(holders.size());
        std::advance(held, RandomInt(random, 0, num_held - 1));
        const BlockId block = held->first;
        if (RandomChance(random, 0.2)) {
          pool.AddRef(block);
          ++held->second;
          continue;
        }
        pool.Release(block);
        fences[block] = dispatched;
        if (--held->second == 0) holders.erase(held);
      }
      pool.CheckInvariants();
      int32_t num_fenced = 0;
      for (const auto& [block, fence] : fences) {
        const bool waits = !holders.contains(block) && fence > acknowledged;
        num_fenced += waits ? 1 : 0;
      }
      ASSERT_EQ(pool.num_fenced(), num_fenced);
      ASSERT_EQ(pool.num_held(), std::ssize(holders));
      ASSERT_EQ(pool.num_free() + pool.num_fenced() + pool.num_held(),
                num_blocks - 1);
    }
    for (const auto& [block, count] : holders) {
      EXPECT_EQ(pool.num_holders(block), count);
      for (int32_t i = 0; i < count; ++i) pool.Release(block);
    }
    pool.ForgetSteps();
    ASSERT_EQ(pool.num_free(), num_blocks - 1);
  }
}

TEST(BlockPoolDeathTest, DoubleReleaseAborts) {
  BlockPool pool(3);
  const BlockId block = AllocateOne(&pool);
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "check failed");
  EXPECT_DEATH(pool.ReleaseUntouched(block), "check failed");
  EXPECT_DEATH(pool.AddRef(block), "check failed");
}

TEST(BlockPoolDeathTest, DoubleReleaseBehindAFenceAborts) {
  BlockPool pool(3);
  const BlockId block = AllocateOne(&pool);
  pool.Dispatch(StepId{1});
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "check failed");
}

TEST(BlockPoolDeathTest, NullBlockIsNeverReleased) {
  BlockPool pool(3);
  EXPECT_DEATH(pool.Release(kNullBlock), "check failed");
}

TEST(BlockPoolDeathTest, StepsAreAcknowledgedInOrder) {
  BlockPool pool(3);
  pool.Dispatch(StepId{1});
  pool.Dispatch(StepId{2});
  pool.Acknowledge(StepId{2});
  EXPECT_DEATH(pool.Acknowledge(StepId{1}), "check failed");
  EXPECT_DEATH(pool.Acknowledge(StepId{3}), "check failed");
  EXPECT_DEATH(pool.Dispatch(StepId{2}), "check failed");
}

}  // namespace
}  // namespace blockmgr
