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

}  // namespace
}  // namespace blockmgr
