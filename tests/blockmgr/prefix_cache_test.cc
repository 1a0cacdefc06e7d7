#include "blockmgr/prefix_cache.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr BlockId kA{1};
constexpr BlockId kB{2};
constexpr BlockId kC{3};
constexpr BlockKey kKey1{1, 0};
constexpr BlockKey kKey2{2, 0};

using Tokens = std::vector<int32_t>;

// Two tokens per block.
class PrefixCacheTest : public ::testing::Test {
 protected:
  EntrySerial Insert(BlockId block, const BlockKey& key, EntrySerial parent,
                     const Tokens& tokens) {
    const EntrySerial serial =
        cache_.Insert(block, key, parent, tokens, &inserted_);
    cache_.CheckInvariants();
    return serial;
  }
  std::vector<BlockId> Match(const std::vector<BlockKey>& keys,
                             const Tokens& tokens) const {
    std::vector<BlockId> blocks;
    cache_.Match(keys, tokens, &blocks);
    return blocks;
  }

  PrefixCache cache_{8, 2};
  bool inserted_ = false;
};

TEST_F(PrefixCacheTest, FindsTheLongestChain) {
  const EntrySerial first = Insert(kA, kKey1, kRootSerial, {1, 2});
  Insert(kB, kKey2, first, {3, 4});
  EXPECT_EQ(cache_.num_entries(), 2);
  EXPECT_THAT(Match({kKey1, kKey2}, {1, 2, 3, 4}), ElementsAre(kA, kB));
  EXPECT_THAT(Match({kKey1}, {1, 2, 3, 4}), ElementsAre(kA));
  EXPECT_THAT(Match({kKey1, {9, 9}}, {1, 2, 5, 6}), ElementsAre(kA));
  EXPECT_THAT(Match({kKey2}, {3, 4}), IsEmpty());  // not a first block
  EXPECT_THAT(Match({}, {}), IsEmpty());
}

TEST_F(PrefixCacheTest, EqualKeyOfOtherTokensIsAMiss) {
  Insert(kA, kKey1, kRootSerial, {1, 2});
  EXPECT_THAT(Match({kKey1}, {1, 3}), IsEmpty());
}

TEST_F(PrefixCacheTest, EqualKeyAndTokensAfterAnotherParentIsAMiss) {
  const EntrySerial first = Insert(kA, kKey1, kRootSerial, {1, 2});
  Insert(kB, kKey2, first, {3, 4});
  // Block C collides with A's successor in key and tokens, but follows the
  // root.
  EXPECT_EQ(Insert(kC, kKey2, kRootSerial, {3, 4}), kNoSerial);
  EXPECT_FALSE(inserted_);
  EXPECT_THAT(Match({kKey2}, {3, 4}), IsEmpty());
}

TEST_F(PrefixCacheTest, EqualLowHalfOfTheKeyIsNoCollision) {
  Insert(kA, {5, 1}, kRootSerial, {1, 2});
  Insert(kB, {5, 2}, kRootSerial, {3, 4});
  EXPECT_TRUE(inserted_);
  EXPECT_THAT(Match({{5, 1}}, {1, 2}), ElementsAre(kA));
  EXPECT_THAT(Match({{5, 2}}, {3, 4}), ElementsAre(kB));
}

TEST_F(PrefixCacheTest, CollidingInsertEndsTheChain) {
  Insert(kA, kKey1, kRootSerial, {1, 2});
  EXPECT_EQ(Insert(kB, kKey1, kRootSerial, {7, 8}), kNoSerial);
  EXPECT_FALSE(inserted_);
  EXPECT_FALSE(cache_.Contains(kB));
  EXPECT_THAT(Match({kKey1}, {1, 2}), ElementsAre(kA));
}

TEST_F(PrefixCacheTest, EqualContentIsIndexedOnceAndItsChainContinues) {
  const EntrySerial first = Insert(kA, kKey1, kRootSerial, {1, 2});
  EXPECT_TRUE(inserted_);
  EXPECT_EQ(Insert(kB, kKey1, kRootSerial, {1, 2}), first);
  EXPECT_FALSE(inserted_);
  Insert(kC, kKey2, first, {3, 4});
  EXPECT_THAT(Match({kKey1, kKey2}, {1, 2, 3, 4}), ElementsAre(kA, kC));
}

TEST_F(PrefixCacheTest, SuccessorOfARemovedEntryIsNeverFound) {
  const EntrySerial first = Insert(kA, kKey1, kRootSerial, {1, 2});
  Insert(kB, kKey2, first, {3, 4});
  cache_.Remove(kA);
  cache_.CheckInvariants();
  EXPECT_THAT(Match({kKey1, kKey2}, {1, 2, 3, 4}), IsEmpty());
  // The same content again, in the same block: a new entry all the same.
  EXPECT_GT(Insert(kA, kKey1, kRootSerial, {1, 2}), first);
  EXPECT_THAT(Match({kKey1, kKey2}, {1, 2, 3, 4}), ElementsAre(kA));
}

TEST_F(PrefixCacheTest, OldestIsTheFirstThatBecameReclaimable) {
  EntrySerial parent = kRootSerial;
  for (const BlockId block : {kA, kB, kC}) {
    parent = Insert(block, {static_cast<uint64_t>(block), 7}, parent, {0, 0});
  }
  for (const BlockId block : {kB, kC, kA}) cache_.AddReclaimable(block);
  EXPECT_EQ(cache_.num_reclaimable(), 3);
  EXPECT_EQ(cache_.oldest(), kB);
  cache_.RemoveReclaimable(kC);  // from the middle
  cache_.CheckInvariants();
  cache_.RemoveReclaimable(kB);
  EXPECT_EQ(cache_.oldest(), kA);
  cache_.AddReclaimable(kB);
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.oldest(), kA);
  cache_.RemoveReclaimable(kB);  // the newest
  cache_.CheckInvariants();
  cache_.RemoveReclaimable(kA);
  EXPECT_EQ(cache_.num_reclaimable(), 0);
}

TEST_F(PrefixCacheTest, StateHashSeesEntriesAndTheirOrder) {
  const uint64_t empty = cache_.StateHash();
  EntrySerial parent = Insert(kA, kKey1, kRootSerial, {1, 2});
  Insert(kB, kKey2, parent, {1, 2});
  const uint64_t held = cache_.StateHash();
  EXPECT_NE(held, empty);
  cache_.AddReclaimable(kA);
  cache_.AddReclaimable(kB);
  const uint64_t a_first = cache_.StateHash();
  EXPECT_NE(a_first, held);
  cache_.RemoveReclaimable(kA);
  cache_.AddReclaimable(kA);
  EXPECT_NE(cache_.StateHash(), a_first);
}

using PrefixCacheDeathTest = PrefixCacheTest;

TEST_F(PrefixCacheDeathTest, BlockIsIndexedAtMostOnce) {
  Insert(kA, kKey1, kRootSerial, {1, 2});
  EXPECT_DEATH(Insert(kA, kKey2, kRootSerial, {3, 4}), "check failed");
}

}  // namespace
}  // namespace blockmgr
