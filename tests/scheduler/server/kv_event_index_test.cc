#include "scheduler/server/kv_event_index.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/prefix_cache.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = KvEvent::Kind;
using Tokens = std::vector<int32_t>;

constexpr int32_t kEventPage = 2;

std::string ScopeName(const ContentScope& scope) {
  return absl::StrCat(scope.tenant, "|", scope.lora, "|", scope.cache_salt);
}

// A consumer that believes what it is told, and minds what a consumer of vLLM's
// events minds.
class EventConsumer {
 public:
  void Take(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) Take(event);
    num_events_ += std::ssize(events);
  }
  // Everything that a prompt can begin with: scope and tokens from position 0.
  std::set<std::string> Paths() const {
    std::set<std::string> paths;
    for (const auto& [hash, item] : items_) {
      const bool is_new = paths.insert(Path(hash)).second;
      EXPECT_TRUE(is_new) << "two blocks for " << Path(hash);
    }
    return paths;
  }
  int64_t num_events() const { return num_events_; }
  int64_t num_clears() const { return num_clears_; }

 private:
  struct Item {
    std::optional<uint64_t> parent = {};
    std::string text = {};
  };

  void Take(const KvEvent& event) {
    switch (event.kind) {
      case Kind::kCleared:
        ++num_clears_;
        items_.clear();
        return;
      case Kind::kRemoved:
        for (const uint64_t hash : event.hashes) {
          EXPECT_EQ(items_.erase(hash), 1u) << "it was not told";
        }
        return;
      case Kind::kBlocks:
        return TakeBlocks(event);
      case Kind::kPrefix:
        EXPECT_FALSE(event.parent.has_value());
        Item& item = items_[event.hashes.at(0)];
        if (event.first_token == 0) {
          EXPECT_TRUE(item.text.empty());
          item.text = absl::StrCat(ScopeName(*event.scope), "/", event.plan,
                                   "@", event.length, ":");
        }
        absl::StrAppend(&item.text, absl::StrJoin(event.tokens, ","), ",");
        return;
    }
  }
  void TakeBlocks(const KvEvent& event) {
    ASSERT_EQ(event.tokens.size(), event.hashes.size() * kEventPage);
    ASSERT_EQ(event.media.size(), event.hashes.size());
    ASSERT_LE(event.hashes.size(), KvEventIndex::kMaxRunBlocks);
    std::optional<uint64_t> parent = event.parent;
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      EXPECT_TRUE(!parent.has_value() || items_.contains(*parent))
          << "its parent was not told";
      std::string text =
          parent.has_value() ? "" : absl::StrCat(ScopeName(*event.scope), ":");
      for (size_t t = i * kEventPage; t < (i + 1) * kEventPage; ++t) {
        absl::StrAppend(&text, event.tokens[t], ",");
      }
      const bool is_new =
          items_.try_emplace(event.hashes[i], Item{parent, text}).second;
      EXPECT_TRUE(is_new) << "told twice";
      parent = event.hashes[i];
    }
  }
  std::string Path(uint64_t hash) const {
    const auto item = items_.find(hash);
    if (item == items_.end()) return "(an unknown parent)";
    return absl::StrCat(
        item->second.parent.has_value() ? Path(*item->second.parent) : "",
        item->second.text);
  }

  std::map<uint64_t, Item> items_;
  int64_t num_events_ = 0;
  int64_t num_clears_ = 0;
};

// The cache, and, apart from it, what can be found in it.
class CountedCache {
 public:
  explicit CountedCache(int32_t num_blocks) : cache_(num_blocks, kEventPage) {}

  // A block of two tokens behind `parent`, an entry or, if it is kNone, a root.
  void Insert(int32_t block, int32_t parent, const ContentScope& scope,
              const Tokens& tokens) {
    BlockChain chain(scope);
    chain.Extend(tokens, kEventPage);
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    bool inserted = false;
    if (parent == PrefixCache::kNone) {
      cache_.Insert(BlockId{block}, chain.keys()[0], chain, root, tokens, 0,
                    &inserted);
    } else {
      cache_.Insert(BlockId{block},
                    chain.KeyAfter(cache_.key(parent), tokens, 0, kEventPage),
                    chain, cache_.serial(parent), tokens, 0, &inserted);
    }
    if (inserted) {
      entries_[block] = {
          .parent =
              parent == PrefixCache::kNone ? kNoSerial : cache_.serial(parent),
          .text = absl::StrCat(parent == PrefixCache::kNone
                                   ? absl::StrCat(ScopeName(scope), ":")
                                   : "",
                               absl::StrJoin(tokens, ","), ",")};
    }
    cache_.ReleaseRoot(root);
  }
  // A region for tokens[0, n - 2), with the last page at `tail`, which is made.
  void InsertRegion(int32_t tail, uint64_t id, const ContentScope& scope,
                    const Tokens& tokens) {
    BlockChain chain(scope);
    chain.Extend(tokens, kEventPage);
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    const auto length = static_cast<int32_t>(tokens.size());
    cache_.InsertTail(BlockId{tail}, chain.keys().back(), chain, tokens,
                      length - kEventPage);
    entries_[tail] = {.parent = ~EntrySerial{0}};
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{id};
    record->cut = length - kEventPage;
    const RegionName name = {
        .plan = absl::StrCat("p", id), .history = "h", .length = length};
    const int32_t entry =
        cache_.InsertRegion(record, name, chain, root, tokens, BlockId{tail});
    entries_[entry] = {
        .tail = cache_.serial(tail),
        .text = absl::StrCat(ScopeName(scope), "/", name.plan, "@", length, ":",
                             absl::StrJoin(tokens, ","), ",")};
    cache_.ReleaseRoot(root);
  }
  void Remove(int32_t entry) {
    cache_.Unlink(entry);
    cache_.Remove(entry);
    entries_.erase(entry);
  }

  PrefixCache& cache() { return cache_; }
  bool Has(int32_t entry) const { return entries_.contains(entry); }
  std::vector<int32_t> regions() const {
    std::vector<int32_t> regions;
    for (const auto& [entry, own] : entries_) {
      if (own.tail != kNoSerial) regions.push_back(entry);
    }
    return regions;
  }
  // What a prompt can begin with, over regions or not.
  std::set<std::string> Paths(bool over_regions) const {
    std::map<EntrySerial, int32_t> entry_of;
    for (const auto& [entry, own] : entries_) {
      entry_of[cache_.serial(entry)] = entry;
    }
    std::set<std::string> paths;
    for (const auto& [entry, own] : entries_) {
      std::string path;
      const Entry* at = &own;
      while (true) {
        path.insert(0, at->text);
        const EntrySerial before =
            at->tail != kNoSerial ? at->tail : at->parent;
        const auto found = entry_of.find(before);
        if (before != kNoSerial && found == entry_of.end()) break;  // useless
        if (before == kNoSerial || at->tail != kNoSerial) {
          if (over_regions == (at->tail != kNoSerial)) paths.insert(path);
          break;
        }
        at = &entries_.at(found->second);
      }
    }
    return paths;
  }

 private:
  struct Entry {
    EntrySerial parent = kNoSerial;
    EntrySerial tail = kNoSerial;  // of a region
    std::string text = {};
  };

  PrefixCache cache_;
  std::map<int32_t, Entry> entries_;
};

// Reads a cache as the publisher does.
struct CacheFollower {
  PrefixCacheReading Read(const PrefixCache& cache, int32_t max_blocks) {
    PrefixCacheReading reading;
    reading.cursor = {.epoch = 7, .cache = 1};
    reading.page_size = kEventPage;
    reading.delta = cache.Read(&position, max_blocks);
    return reading;
  }
  PrefixCachePosition position;
};

class KvEventIndexTest : public ::testing::Test {
 protected:
  KvEventLists Read(int32_t max_blocks = 1000) {
    return index_.Apply(reader_.Read(counted_.cache(), max_blocks));
  }

  CountedCache counted_{16};
  CacheFollower reader_;
  KvEventIndex index_;
};

TEST_F(KvEventIndexTest, BeginsWithNothing) {
  const KvEventLists events = Read();
  ASSERT_THAT(events.blocks, SizeIs(1));
  EXPECT_EQ(events.blocks[0].kind, Kind::kCleared);
  ASSERT_THAT(events.prefixes, SizeIs(1));
  EXPECT_EQ(events.prefixes[0].kind, Kind::kCleared);
  EXPECT_THAT(Read().blocks, IsEmpty());
}

TEST_F(KvEventIndexTest, AChainIsOneEventWhateverTheOrderOfBlocks) {
  const ContentScope scope = {.tenant = "t", .lora = "l", .cache_salt = "s"};
  counted_.Insert(9, PrefixCache::kNone, scope, {1, 2});
  counted_.Insert(5, 9, scope, {3, 4});
  counted_.Insert(7, 5, scope, {5, 6});
  const KvEventLists events = Read();
  ASSERT_THAT(events.blocks, SizeIs(2));
  const KvEvent& told = events.blocks[1];
  EXPECT_EQ(told.kind, Kind::kBlocks);
  EXPECT_THAT(told.hashes, SizeIs(3));
  EXPECT_EQ(told.parent, std::nullopt);
  EXPECT_THAT(told.tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(ScopeName(*told.scope), "t|l|s");
  // What comes later names its parent.
  counted_.Insert(1, 7, scope, {7, 8});
  const KvEventLists more = Read();
  ASSERT_THAT(more.blocks, SizeIs(1));
  EXPECT_EQ(more.blocks[0].parent, told.hashes[2]);
}

TEST_F(KvEventIndexTest, WaitsForAParentOfALaterReading) {
  counted_.Insert(9, PrefixCache::kNone, {}, {1, 2});
  counted_.Insert(5, 9, {}, {3, 4});
  EXPECT_THAT(Read(7).blocks, SizeIs(1)) << "block 5 alone, which cannot start";
  EXPECT_EQ(index_.num_items(), 1);
  const KvEventLists events = Read();
  ASSERT_THAT(events.blocks, SizeIs(1));
  EXPECT_THAT(events.blocks[0].tokens, ElementsAre(1, 2, 3, 4));
}

// A block that is computed again is not found with what followed the old one.
TEST_F(KvEventIndexTest, WhatIsBehindARemovedBlockIsRemovedWithIt) {
  counted_.Insert(1, PrefixCache::kNone, {}, {1, 2});
  counted_.Insert(2, 1, {}, {3, 4});
  counted_.Insert(3, 2, {}, {5, 6});
  EventConsumer consumer;
  consumer.Take(Read().blocks);
  counted_.Remove(1);
  counted_.Insert(1, PrefixCache::kNone, {}, {1, 2});
  const KvEventLists events = Read();
  ASSERT_THAT(events.blocks, SizeIs(2));
  EXPECT_THAT(events.blocks[0].hashes, SizeIs(3));
  EXPECT_THAT(events.blocks[1].hashes, SizeIs(1));
  consumer.Take(events.blocks);
  EXPECT_THAT(consumer.Paths(), ElementsAre("||:1,2,"));
  // The others are not told to go once more.
  counted_.Remove(2);
  counted_.Remove(3);
  EXPECT_THAT(Read().blocks, IsEmpty());
  EXPECT_EQ(index_.num_items(), 1);
}

TEST_F(KvEventIndexTest, CompressedPrefixesHaveEventsOfTheirOwn) {
  Read();
  Tokens tokens(10'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i);
  const ContentScope scope = {.lora = "l", .media = {{9, 2, "m"}}};
  counted_.InsertRegion(3, 1, scope, tokens);
  const KvEventLists events = Read();
  EXPECT_THAT(events.blocks, IsEmpty());
  ASSERT_THAT(events.prefixes, SizeIs(3));
  Tokens told;
  for (const KvEvent& piece : events.prefixes) {
    EXPECT_EQ(piece.kind, Kind::kPrefix);
    EXPECT_EQ(piece.hashes, events.prefixes[0].hashes);
    EXPECT_EQ(piece.first_token, std::ssize(told));
    EXPECT_EQ(piece.length, 10'000);
    EXPECT_EQ(piece.plan, "p1");
    EXPECT_EQ(piece.scope->lora, "l");
    told.insert(told.end(), piece.tokens.begin(), piece.tokens.end());
  }
  EXPECT_EQ(told, tokens);
  EXPECT_THAT(events.prefixes[0].media[0], ElementsAre(MediaItem{9, 2, "m"}));
  EXPECT_THAT(events.prefixes[1].media[0], IsEmpty());
  // Without the tail block it is of no use.
  const int32_t region = counted_.regions()[0];
  counted_.Insert(5, region, scope, {1, 2});
  EXPECT_THAT(Read().prefixes, SizeIs(1));
  counted_.Remove(3);
  const KvEventLists gone = Read();
  EXPECT_THAT(gone.blocks, IsEmpty());
  ASSERT_THAT(gone.prefixes, SizeIs(1));
  EXPECT_EQ(gone.prefixes[0].kind, Kind::kRemoved);
  EXPECT_THAT(gone.prefixes[0].hashes, SizeIs(2));
  counted_.Remove(region);
  counted_.Remove(5);
  EXPECT_THAT(Read().prefixes, IsEmpty());
  EXPECT_EQ(index_.num_items(), 0);
}

// Consumers know blocks by their hashes, of any daemon and after a reset.
TEST_F(KvEventIndexTest, HashesOfBlocksFollowFromTheirContent) {
  counted_.Insert(1, PrefixCache::kNone, {}, {1, 2});
  counted_.Insert(2, 1, {}, {1, 2});
  counted_.Insert(3, PrefixCache::kNone, {.lora = "l"}, {1, 2});
  counted_.Insert(4, PrefixCache::kNone, {.cache_salt = "l"}, {1, 2});
  counted_.InsertRegion(6, 1, {}, {1, 2, 3, 4});
  const auto hashes = [](const KvEventLists& events) {
    std::set<uint64_t> all;
    for (const auto* list : {&events.blocks, &events.prefixes}) {
      for (const KvEvent& event : *list) {
        all.insert(event.hashes.begin(), event.hashes.end());
      }
    }
    return all;
  };
  const std::set<uint64_t> before = hashes(Read());
  EXPECT_THAT(before, SizeIs(5));
  reader_ = {};
  PrefixCacheReading reading = reader_.Read(counted_.cache(), 1000);
  reading.cursor.cache = 2;
  const KvEventLists events = index_.Apply(reading);
  EXPECT_EQ(events.blocks.at(0).kind, Kind::kCleared);
  const std::set<uint64_t> after = hashes(events);
  EXPECT_THAT(after, SizeIs(5));
  std::vector<uint64_t> equal;
  std::ranges::set_intersection(before, after, std::back_inserter(equal));
  EXPECT_THAT(equal, SizeIs(4)) << "all but the region's";
}

TEST_F(KvEventIndexTest, MediaAreContent) {
  std::set<uint64_t> hashes;
  for (const char* const hash : {"a", "b"}) {
    counted_.Insert(1, PrefixCache::kNone, {.media = {{0, 1, hash}}}, {1, 2});
    hashes.insert(Read().blocks.back().hashes.at(0));
    counted_.Remove(1);
  }
  EXPECT_THAT(hashes, SizeIs(2));
}

constexpr int32_t kRandomBlocks = 40;

// Inserts or removes a block or a region.
void ChangeAtRandom(int32_t op, Rng& rng, uint64_t* next_region,
                    CountedCache* counted) {
  const int32_t block = RandomInt(rng, 0, kRandomBlocks - 1);
  const std::vector<int32_t> regions = counted->regions();
  const ContentScope scope = {
      .tenant = std::to_string(RandomInt(rng, 0, 1)),
      .cache_salt = std::to_string(RandomInt(rng, 0, 1))};
  const Tokens tokens = {RandomInt(rng, 0, 3), RandomInt(rng, 0, 3)};
  if (!regions.empty() && RandomChance(rng, 0.05)) {
    counted->Remove(regions[static_cast<size_t>(
        RandomInt(rng, 0, static_cast<int32_t>(regions.size()) - 1))]);
  } else if (counted->Has(block)) {
    // The cache empties and fills again.
    if (RandomChance(rng, op / 500 % 2 == 0 ? 0.3 : 0.9)) {
      counted->Remove(block);
    }
  } else if (RandomChance(rng, 0.1) && regions.size() < 10) {
    counted->InsertRegion(block, (*next_region)++, scope,
                          {1, 2, 3, 4, tokens[0], tokens[1]});
  } else if (!regions.empty() && RandomChance(rng, 0.2)) {
    counted->Insert(block, regions[0], scope, tokens);
  } else {
    const int32_t before = RandomInt(rng, 0, kRandomBlocks - 1);
    const bool follows = counted->Has(before) && RandomChance(rng, 0.7);
    counted->Insert(block, follows ? before : PrefixCache::kNone, scope,
                    tokens);
  }
}

// Consumers of every pace know exactly what prompts can begin with, whenever
// the index has read everything. The nightly test has over 100,000 events.
TEST(KvEventIndexRandomTest, ConsumersKnowWhatIsCached) {
  constexpr int32_t kOps = 12'000;
  const uint64_t num_seeds = CountCases(1);
  int64_t num_events = 0;
  int64_t num_clears = 0;
  int64_t num_compared = 0;
  size_t most_prefixes = 0;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    CountedCache counted(kRandomBlocks);
    struct Follower {
      CacheFollower reader;
      KvEventIndex index;
      EventConsumer blocks;
      EventConsumer prefixes;
    };
    std::vector<Follower> followers(3);
    uint64_t next_region = 1;
    for (int32_t op = 0; op < kOps; ++op) {
      ChangeAtRandom(op, rng, &next_region, &counted);
      for (size_t i = 0; i < followers.size(); ++i) {
        if (!RandomChance(rng, 1.0 / static_cast<double>(1 << (3 * i)))) {
          continue;
        }
        Follower& own = followers[i];
        const PrefixCacheReading reading =
            own.reader.Read(counted.cache(), RandomInt(rng, 1, 60));
        const KvEventLists events = own.index.Apply(reading);
        own.blocks.Take(events.blocks);
        own.prefixes.Take(events.prefixes);
        if (!reading.delta.current || !RandomChance(rng, 0.1)) continue;
        ++num_compared;
        ASSERT_EQ(own.blocks.Paths(), counted.Paths(false)) << "follower " << i;
        const std::set<std::string> prefixes = counted.Paths(true);
        ASSERT_EQ(own.prefixes.Paths(), prefixes) << "follower " << i;
        most_prefixes = std::max(most_prefixes, prefixes.size());
      }
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    for (const Follower& own : followers) {
      num_events += own.blocks.num_events() + own.prefixes.num_events();
      num_clears += own.blocks.num_clears();
    }
  }
  const auto seeds = static_cast<int64_t>(num_seeds);
  EXPECT_GT(num_events, 6'000 * seeds);
  EXPECT_GT(num_clears, 10 * seeds);
  EXPECT_GT(num_compared, 300 * seeds);
  EXPECT_GT(most_prefixes, 8u);
}

}  // namespace
}  // namespace blockmgr
