#include <memory>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/prefix_cache.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two window groups, four tokens per page.
class PrefixCacheWindowsTest : public ::testing::Test {
 protected:
  PrefixCacheWindowsTest() : cache_(20, 4, 2), tokens_(8) {
    std::iota(tokens_.begin(), tokens_.end(), 1);
    chain_.Extend(tokens_, 4);
    root_ = cache_.AcquireRoot(chain_.root());
    bool inserted = false;
    cache_.Insert(BlockId{1}, chain_.keys()[0], chain_, root_, tokens_, 0,
                  &inserted);
    EXPECT_TRUE(inserted);
  }

  static std::shared_ptr<const RegionRecord> Record(
      uint64_t id, std::vector<BlockId> blocks) {
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{id};
    record->cut = 4;
    record->blocks = std::move(blocks);
    return record;
  }
  // Of the first 8 tokens, with the block 2 for a tail.
  int32_t InsertRegion(std::shared_ptr<const RegionRecord> record,
                       const char* plan, RegionWindows windows) {
    if (!cache_.Contains(BlockId{2})) {
      bool inserted = false;
      cache_.Insert(BlockId{2}, chain_.keys()[1], chain_, cache_.serial(1),
                    tokens_, 4, &inserted);
    }
    return cache_.InsertRegion(
        std::move(record), {.plan = plan, .history = "h", .length = 8}, chain_,
        root_, tokens_, BlockId{2}, nullptr, std::move(windows));
  }

  PrefixCache cache_;
  std::vector<int32_t> tokens_;
  BlockChain chain_{ContentScope{}};
  EntrySerial root_ = kNoSerial;
};

TEST_F(PrefixCacheWindowsTest, FindsTheBlockOfEachGroup) {
  EXPECT_EQ(cache_.WindowBlock(1, 0), kNullBlock);
  cache_.InsertWindow(1, 1, BlockId{7});
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.WindowBlock(1, 0), kNullBlock);
  EXPECT_EQ(cache_.WindowBlock(1, 1), BlockId{7});
  EXPECT_TRUE(cache_.Contains(BlockId{7}));
  EXPECT_EQ(cache_.num_blocks_held(), 2);
}

TEST_F(PrefixCacheWindowsTest, CanBeReclaimedAlone) {
  cache_.InsertWindow(1, 0, BlockId{7});
  cache_.AddReclaimable(7);
  EXPECT_EQ(cache_.num_reclaimable(), 1);
  EXPECT_EQ(cache_.next_to_reclaim(), 7);
  cache_.RemoveReclaimable(7);
  cache_.Remove(7);
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.WindowBlock(1, 0), kNullBlock);
  EXPECT_EQ(cache_.num_blocks_held(), 1);
  // The block may come back as another's.
  cache_.InsertWindow(1, 1, BlockId{7});
  EXPECT_EQ(cache_.WindowBlock(1, 1), BlockId{7});
}

TEST_F(PrefixCacheWindowsTest, NothingLeadsToTheOrphansOfAnEntry) {
  cache_.InsertWindow(1, 0, BlockId{7});
  cache_.InsertWindow(1, 1, BlockId{8});
  const std::span<const int32_t> orphans = cache_.Unlink(1);
  EXPECT_THAT(orphans, ElementsAre(7, 8));
  // They lead to none themselves.
  EXPECT_THAT(cache_.Unlink(7), IsEmpty());
  for (const int32_t orphan : orphans) cache_.Remove(orphan);
  cache_.Remove(1);
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.num_blocks_held(), 0);
}

TEST_F(PrefixCacheWindowsTest, RegionKeepsWhatItLinks) {
  cache_.InsertWindow(1, 0, BlockId{7});
  cache_.InsertWindow(PrefixCache::kNone, 1, BlockId{8});
  const int32_t entry =
      InsertRegion(Record(1, {BlockId{9}}), "p",
                   {.regions = {{}, {}}, .blocks = {BlockId{7}, BlockId{8}}});
  cache_.CheckInvariants();
  const CachedRegion& cached = *cache_.region(entry);
  EXPECT_EQ(cache_.WindowBlockOf(cached, 0), BlockId{7});
  // What else led to it is gone.
  EXPECT_THAT(cache_.Unlink(1), IsEmpty());
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.WindowBlockOf(cached, 0), BlockId{7});
  // Another block by this number is not meant.
  cache_.Remove(8);
  cache_.InsertWindow(1, 1, BlockId{8});
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.WindowBlockOf(cached, 1), kNullBlock);
  EXPECT_THAT(cache_.Unlink(entry), ElementsAre(7));
}

TEST_F(PrefixCacheWindowsTest, RegionOfAWindowGoesWithTheLastThatLinksIt) {
  const GroupRegion shared = {Record(5, {BlockId{10}, BlockId{11}}), 8};
  const int32_t entry = cache_.InsertWindowRegion(shared.region);
  EXPECT_EQ(cache_.num_blocks_held(), 3);
  EXPECT_EQ(cache_.num_blocks(entry), 2);
  const RegionWindows windows = {.regions = {shared, {}}, .blocks = {}};
  const int32_t first = InsertRegion(Record(1, {BlockId{9}}), "p", windows);
  const int32_t second = InsertRegion(Record(2, {BlockId{12}}), "q", windows);
  cache_.CheckInvariants();
  EXPECT_TRUE(cache_.HasWindowRegion(cache_.region(first)->window(1)));
  // What has no block is always there.
  EXPECT_TRUE(cache_.HasWindowRegion(cache_.region(first)->window(2)));
  EXPECT_TRUE(cache_.HasWindowRegion({Record(6, {}), 8}));
  EXPECT_THAT(cache_.Unlink(entry), IsEmpty());
  EXPECT_THAT(cache_.Unlink(first), IsEmpty());
  cache_.Remove(first);
  cache_.CheckInvariants();
  EXPECT_THAT(cache_.Unlink(second), ElementsAre(entry));
  cache_.Remove(entry);
  cache_.Remove(second);
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.num_blocks_held(), 2);
  EXPECT_FALSE(cache_.HasWindowRegion(shared));
}

// Then the region that links it is found by nobody who needs it, and an equal
// one may take its place.
TEST_F(PrefixCacheWindowsTest, RegionOfAWindowCanBeReclaimedAlone) {
  const GroupRegion window = {Record(5, {BlockId{10}}), 8};
  const int32_t entry = cache_.InsertWindowRegion(window.region);
  InsertRegion(Record(1, {BlockId{9}}), "p", {{window, {}}, {}});
  const RegionName name = {.plan = "p", .history = "h", .length = 8};
  EXPECT_NE(cache_.FindRegion(name, chain_, root_, tokens_),
            PrefixCache::kNone);
  cache_.AddReclaimable(entry);
  EXPECT_EQ(cache_.num_reclaimable(), 1);
  cache_.RemoveReclaimable(entry);
  cache_.Remove(entry);
  cache_.CheckInvariants();
  EXPECT_FALSE(cache_.HasWindowRegion(window));
  EXPECT_EQ(cache_.FindRegion(name, chain_, root_, tokens_),
            PrefixCache::kNone);
  // Its place may be another's, to which that region does not lead.
  const GroupRegion other = {Record(7, {BlockId{10}}), 8};
  EXPECT_EQ(cache_.InsertWindowRegion(other.region), entry);
  const int32_t equal =
      InsertRegion(Record(2, {BlockId{12}}), "p", {{other, {}}, {}});
  cache_.CheckInvariants();
  EXPECT_EQ(cache_.FindRegion(name, chain_, root_, tokens_), equal);
  EXPECT_THAT(cache_.Unlink(equal), ElementsAre(entry));
}

TEST_F(PrefixCacheWindowsTest, LostBlocksTakeTheRegionOfAWindowAlone) {
  const GroupRegion window = {Record(5, {BlockId{10}}), 8};
  const int32_t entry = cache_.InsertWindowRegion(window.region);
  InsertRegion(Record(1, {BlockId{9}}), "p", {{window, {}}, {}});
  absl::flat_hash_set<EntrySerial> gone;
  EXPECT_THAT(cache_.FindLost({BlockId{10}}, &gone), ElementsAre(entry));
  EXPECT_THAT(gone, ElementsAre(cache_.serial(entry)));
}

}  // namespace
}  // namespace blockmgr
