#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/prefix_cache.h"
#include "blockmgr/prefix_cache_log.h"
#include "tests/testing/cache_reader.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Tokens = std::vector<int32_t>;

constexpr int32_t kPage = 2;
constexpr int32_t kAll = 1000;

class PrefixCacheReadTest : public ::testing::Test {
 protected:
  // Publishes `block` as the last page of `tokens`. Returns its serial.
  EntrySerial Insert(BlockId block, const Tokens& tokens, EntrySerial parent,
                     const ContentScope& scope = {}) {
    BlockChain chain(scope);
    chain.Extend(tokens, kPage);
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    bool inserted = false;
    cache_.Insert(block, chain.keys().back(), chain,
                  parent == kNoSerial ? root : parent, tokens,
                  static_cast<int32_t>(tokens.size()) - kPage, &inserted);
    EXPECT_TRUE(inserted);
    cache_.ReleaseRoot(root);
    return cache_.serial(Index(block));
  }
  // The first page of {`token`, `token`} on a block of its own.
  EntrySerial Insert(int32_t block, int32_t token) {
    return Insert(BlockId{block}, {token, token}, kNoSerial);
  }
  void Remove(int32_t entry) { cache_.Remove(entry); }
  PrefixCacheDelta Read(int32_t max_blocks = kAll) {
    return cache_.Read(&position_, max_blocks);
  }
  static std::vector<EntrySerial> Serials(const PrefixCacheDelta& delta) {
    std::vector<EntrySerial> serials;
    for (const auto& block : delta.blocks) serials.push_back(block.serial);
    return serials;
  }
  PrefixCache cache_{8, kPage};
  PrefixCachePosition position_;
};

TEST_F(PrefixCacheReadTest, AnEmptyCacheIsKnownAtOnce) {
  const PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_THAT(delta.removed, IsEmpty());
  EXPECT_THAT(delta.scopes, IsEmpty());
  EXPECT_THAT(delta.blocks, IsEmpty());
  EXPECT_THAT(delta.regions, IsEmpty());
}

TEST_F(PrefixCacheReadTest, TellsWhatBlocksHoldAndWhatTheyComeAfter) {
  const ContentScope scope = {
      .tenant = "t", .lora = "l", .cache_salt = "s", .media = {{1, 2, "m"}}};
  const EntrySerial first = Insert(BlockId{3}, {1, 2}, kNoSerial, scope);
  const EntrySerial second = Insert(BlockId{1}, {1, 2, 3, 4}, first, scope);
  const PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_THAT(Serials(delta), ElementsAre(second, first));
  EXPECT_EQ(delta.blocks[0].parent, first);
  EXPECT_THAT(delta.TokensOf(0), ElementsAre(3, 4));
  EXPECT_THAT(delta.TokensOf(1), ElementsAre(1, 2));
  // Items begin before the second block, and in the first.
  EXPECT_THAT(DecodeMedia(delta.blocks[0].media),
              ElementsAre(MediaItem{-1, 2, "m"}));
  EXPECT_THAT(DecodeMedia(delta.blocks[1].media),
              ElementsAre(MediaItem{1, 2, "m"}));
  ASSERT_EQ(delta.scopes.size(), 1u);
  const auto& [root, name] = *delta.scopes.begin();
  EXPECT_EQ(delta.blocks[1].parent, root);
  EXPECT_EQ(DecodeRoot(name).tenant, "t");
  EXPECT_EQ(DecodeRoot(name).lora, "l");
  EXPECT_EQ(DecodeRoot(name).cache_salt, "s");
  EXPECT_THAT(delta.removed, IsEmpty());
}

TEST_F(PrefixCacheReadTest, AScopeGoesWithTheLastThatFollowsIt) {
  const EntrySerial a = Insert(1, 10);
  const EntrySerial b = Insert(2, 11);
  const PrefixCacheDelta before = Read();
  const EntrySerial root = before.scopes.begin()->first;
  Remove(1);
  EXPECT_THAT(Read().removed, ElementsAre(a));
  Remove(2);
  EXPECT_THAT(Read().removed, UnorderedElementsAre(b, root));
  Insert(3, 10);
  EXPECT_NE(Read().scopes.begin()->first, root);
}

TEST_F(PrefixCacheReadTest, WhoMissesTooMuchBeginsAnew) {
  Insert(1, 10);
  Read();
  // As many changes as the log keeps: a scope of its own goes with each block.
  const PrefixCachePosition before = position_;
  for (int32_t i = 0; i < 3; ++i) {
    Insert(BlockId{2}, {20 + i, 20}, kNoSerial, {.tenant = "t"});
    Remove(2);
  }
  EXPECT_EQ(cache_.num_changes(), before.change + 9);
  PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_THAT(Serials(delta), ElementsAre(cache_.serial(1)));
  EXPECT_THAT(delta.removed, IsEmpty());
  // One change less is not too much.
  for (int32_t i = 0; i < 8; ++i) {
    if (i % 2 == 0) {
      Insert(2, 20);
    } else {
      Remove(2);
    }
  }
  delta = Read();
  EXPECT_FALSE(delta.reset);
  EXPECT_TRUE(delta.current);
}

TEST_F(PrefixCacheReadTest, PositionsThatCannotBeBeginAnew) {
  Insert(1, 10);
  Read();
  const uint64_t end = cache_.num_changes();
  for (const PrefixCachePosition& wrong :
       {PrefixCachePosition{end + 1, 0}, PrefixCachePosition{end, -1},
        PrefixCachePosition{}}) {
    position_ = wrong;
    const PrefixCacheDelta delta = Read();
    EXPECT_TRUE(delta.reset);
    EXPECT_TRUE(delta.current);
    EXPECT_EQ(delta.blocks.size(), 1u);
    EXPECT_EQ(position_,
              (PrefixCachePosition{end, PrefixCachePosition::kAllEntries}));
  }
}

TEST_F(PrefixCacheReadTest, TellsRegionsAndWhatFollowsThem) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const ContentScope scope = {.media = {{3, 2, "m"}}};
  BlockChain chain(scope);
  chain.Extend(tokens, kPage);
  const EntrySerial root = cache_.AcquireRoot(chain.root());
  cache_.InsertTail(BlockId{3}, chain.keys()[2], chain, tokens, 4);
  auto record = std::make_shared<RegionRecord>();
  record->id = RegionId{1};
  record->cut = 4;
  record->blocks = {BlockId{5}};
  const int32_t region =
      cache_.InsertRegion(record, {.plan = "p", .history = "h", .length = 6},
                          chain, root, std::span(tokens).first(6), BlockId{3});
  bool inserted = false;
  cache_.Insert(BlockId{4},
                chain.KeyAfter(cache_.key(region), tokens, 6, kPage), chain,
                cache_.serial(region), tokens, 6, &inserted);
  const PrefixCacheDelta delta = Read();
  ASSERT_EQ(delta.regions.size(), 1u);
  const PrefixCacheDelta::Region& told = delta.regions[0];
  EXPECT_EQ(told.serial, cache_.serial(region));
  EXPECT_EQ(told.scope, root);
  EXPECT_EQ(told.tail, cache_.serial(3));
  EXPECT_EQ(told.length, 6);
  EXPECT_EQ(told.plan, "p");
  EXPECT_THAT(told.content->tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(DecodeMedia(told.content->media),
              ElementsAre(MediaItem{3, 2, "m"}));
  EXPECT_THAT(delta.scopes, ElementsAre(Pair(root, chain.root())));
  ASSERT_EQ(delta.blocks.size(), 2u);
  EXPECT_EQ(delta.blocks[0].serial, told.tail);
  EXPECT_EQ(delta.blocks[1].parent, told.serial);
  CacheReader reader(kPage);
  ASSERT_TRUE(reader.Read(cache_, kAll));
  EXPECT_EQ(reader.Difference(cache_), "");
  cache_.Remove(region);
  EXPECT_THAT(Read().removed, ElementsAre(told.serial));
}

// A reader that stalls holds on to the content of what it was told last.
TEST_F(PrefixCacheReadTest, ARegionCountsAsTheBlocksItStandsFor) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  BlockChain chain;
  chain.Extend(tokens, kPage);
  const EntrySerial root = cache_.AcquireRoot(chain.root());
  cache_.InsertTail(BlockId{3}, chain.keys()[3], chain, tokens, 6);
  for (uint64_t id = 1; id <= 3; ++id) {
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{id};
    record->cut = 6;
    record->blocks = {BlockId{4 + static_cast<int32_t>(id)}};
    cache_.InsertRegion(
        record, {.plan = std::to_string(id), .history = "h", .length = 8},
        chain, root, tokens, BlockId{3});
  }
  EXPECT_EQ(Read(8).blocks.size(), 1u);
  EXPECT_EQ(Read(5).regions.size(), 1u);
  EXPECT_EQ(Read(6).regions.size(), 2u) << "one begins where one block is left";
}

TEST(PrefixCacheReadLinkedTest, LinkedGroupsAreNotToldOf) {
  PrefixCache cache(20, kPage, 2);
  const Tokens tokens = {1, 2, 3, 4};
  BlockChain chain;
  chain.Extend(tokens, kPage);
  const EntrySerial root = cache.AcquireRoot(chain.root());
  bool inserted = false;
  cache.Insert(BlockId{1}, chain.keys()[0], chain, root, tokens, 0, &inserted);
  cache.InsertLinked(1, 1, BlockId{2});
  const uint64_t changes = cache.num_changes();
  CacheReader reader(kPage);
  EXPECT_TRUE(reader.Read(cache, kAll));
  EXPECT_EQ(reader.num_blocks(), 1);
  EXPECT_EQ(reader.Difference(cache), "");
  cache.Remove(2);
  EXPECT_EQ(cache.num_changes(), changes);
  auto record = std::make_shared<RegionRecord>();
  record->id = RegionId{1};
  record->blocks = {BlockId{9}};
  cache.InsertLinkedRegion(record);
  EXPECT_EQ(cache.num_changes(), changes);
  CacheReader second(kPage);
  EXPECT_TRUE(second.Read(cache, kAll));
  EXPECT_EQ(second.num_regions(), 0);
}

// Readers of every pace, each of which knows exactly what is cached whenever it
// is told that it does.
TEST(PrefixCacheReadRandomTest, ReadersKnowWhatIsCached) {
  constexpr int32_t kBlocks = 40;
  constexpr int32_t kOps = 60'000;
  int64_t num_complete = 0;
  int64_t num_resets = 0;
  int64_t num_interrupted = 0;  // walks
  for (uint64_t seed = 1; seed <= SlowCases(4); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    PrefixCache cache(kBlocks, kPage);
    std::vector<CacheReader> readers(4, CacheReader(kPage));
    for (int32_t op = 0; op < kOps; ++op) {
      const int32_t block = RandomInt(rng, 0, kBlocks - 1);
      if (cache.Contains(BlockId{block})) {
        // The cache empties and fills again.
        if (RandomChance(rng, op / 500 % 2 == 0 ? 0.3 : 0.9)) {
          cache.Remove(block);
        }
      } else {
        const ContentScope scope = {.tenant =
                                        std::to_string(RandomInt(rng, 0, 2))};
        const Tokens tokens = {RandomInt(rng, 0, 9), RandomInt(rng, 0, 9)};
        BlockChain chain(scope);
        chain.Extend(tokens, kPage);
        const EntrySerial root = cache.AcquireRoot(chain.root());
        const int32_t before = RandomInt(rng, 0, kBlocks - 1);
        bool inserted = false;
        if (cache.Contains(BlockId{before}) && RandomChance(rng, 0.7)) {
          const BlockKey key =
              chain.KeyAfter(cache.key(before), tokens, 0, kPage);
          cache.Insert(BlockId{block}, key, chain, cache.serial(before), tokens,
                       0, &inserted);
        } else {
          cache.Insert(BlockId{block}, chain.keys()[0], chain, root, tokens, 0,
                       &inserted);
        }
        cache.ReleaseRoot(root);
      }
      for (size_t i = 0; i < readers.size(); ++i) {
        // One reads after each operation, the last every 64 on average.
        if (!RandomChance(rng, 1.0 / static_cast<double>(1 << (2 * i)))) {
          continue;
        }
        const int64_t resets = readers[i].num_resets();
        const int32_t max_blocks = RandomInt(rng, 1, 60);
        if (i > 0 && RandomChance(rng, 0.1)) {
          readers[i].ReadInPart(cache, max_blocks, RandomInt(rng, 0, 20));
          continue;
        }
        const bool current = readers[i].Read(cache, max_blocks);
        num_interrupted += !current && readers[i].num_resets() > resets ? 1 : 0;
        EXPECT_EQ(readers[i].num_repeated(), 0);
        if (!current) continue;
        ++num_complete;
        ASSERT_EQ(readers[i].Difference(cache), "") << "reader " << i;
      }
    }
    for (const CacheReader& reader : readers) num_resets += reader.num_resets();
    EXPECT_EQ(readers[0].num_resets(), 1);
  }
  EXPECT_GT(num_complete, SlowFloor(10'000));
  EXPECT_GT(num_resets, SlowFloor(100));
  EXPECT_GT(num_interrupted, SlowFloor(100));
}

TEST(PrefixCacheLogTest, KeepsTheLastChanges) {
  PrefixCacheLog log(3);
  EXPECT_EQ(log.begin(), 0u);
  EXPECT_EQ(log.end(), 0u);
  for (EntrySerial serial = 10; serial < 17; ++serial) {
    log.Append({.serial = serial, .entry = 1, .removed = serial % 2 == 0});
    EXPECT_EQ(log.end(), serial - 9);
    EXPECT_EQ(log.begin(), serial < 13 ? 0 : serial - 12);
    for (uint64_t i = log.begin(); i < log.end(); ++i) {
      EXPECT_EQ(log[i].serial, i + 10);
      EXPECT_EQ(log[i].entry, 1);
      EXPECT_EQ(log[i].removed, i % 2 == 0);
    }
  }
}

TEST(PrefixCacheLogTest, ReportsItsMemory) {
  EXPECT_EQ(PrefixCacheLog(1000).metadata_bytes(), 16000);
}

}  // namespace
}  // namespace blockmgr
