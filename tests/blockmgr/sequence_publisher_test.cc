#include "blockmgr/sequence_publisher.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_hash.h"
#include "blockmgr/cached_pool.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/sequence_cache.h"
#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

// A sequence of up to five pages of four tokens, in blocks 1 to 5.
class SequencePublisherTest : public testing::Test {
 protected:
  SequencePublisherTest() : tokens_(20), blocks_(layout_) {
    std::iota(tokens_.begin(), tokens_.end(), 1);
    chain_.Extend(tokens_, 4);
    sequence_.root_serial = blocks_.cache().AcquireRoot(chain_.root());
    sequence_.chain_serial = sequence_.root_serial;
  }
  // Gives the sequence as many blocks as so many settled tokens need.
  void Settle(int32_t num_tokens) {
    sequence_.num_settled = num_tokens;
    std::vector<BlockId>& tail = sequence_.first().tail;
    while (std::ssize(tail) * 4 < num_tokens) {
      tail.emplace_back();
      blocks_.Take({&tail.back(), 1});
    }
  }
  void Publish() { publisher_.Publish(&sequence_, tokens_, chain_); }
  bool IsCached(int32_t page) const {
    return blocks_.cache().Contains(sequence_.first().tail[page]);
  }
  // Makes the cut behind `num_pages` pages the end of a region in a block of
  // its own.
  void Compress(int32_t num_pages) {
    std::vector<BlockId> destination(1);
    blocks_.Take(destination);
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{7};
    record->cut = num_pages * 4;
    record->blocks = destination;
    GroupCache& first = sequence_.first();
    first.region = std::move(record);
    first.region_length = sequence_.num_settled;
    first.tail.erase(first.tail.begin(), first.tail.begin() + num_pages);
    first.tail_begin = num_pages;
  }
  RegionPublication PublicationAt(int32_t length) const {
    return {.name = {.plan = "p", .history = "h", .length = length},
            .chain = &chain_,
            .tokens = tokens_};
  }

  const ModelLayout layout_ = TwoByTwo(8);
  std::vector<int32_t> tokens_;
  BlockChain chain_;
  CachedPool blocks_;
  SequenceCache sequence_;
  SequencePublisher publisher_{&layout_, &blocks_};
};

TEST_F(SequencePublisherTest, OnlyFullBlocksOfSettledTokensArePublished) {
  Settle(11);
  Publish();
  EXPECT_EQ(sequence_.num_published, 2);
  EXPECT_TRUE(IsCached(0));
  EXPECT_TRUE(IsCached(1));
  EXPECT_FALSE(IsCached(2));
  EXPECT_EQ(sequence_.chain_serial,
            blocks_.cache().serial(Index(sequence_.first().tail[1])));
  EXPECT_EQ(sequence_.chain_key, chain_.keys()[1]);
  Settle(12);
  Publish();
  EXPECT_TRUE(IsCached(2));
}

TEST_F(SequencePublisherTest, PublishesUpToABlockThatAnEvictionOverwrites) {
  Settle(12);
  auto pending = std::make_shared<PendingEviction>();
  pending->cut = 12;
  pending->length = 12;
  pending->destinations = {sequence_.first().tail[1]};
  pending->num_own = 1;
  sequence_.first().pending = std::move(pending);
  Publish();
  EXPECT_EQ(sequence_.num_published, 1);
  EXPECT_FALSE(IsCached(1));
  EXPECT_FALSE(IsCached(2));
  EXPECT_EQ(sequence_.chain_serial, kNoSerial);
}

TEST_F(SequencePublisherTest, ASequenceThatWasCutBackFollowsItsLastFullBlock) {
  Settle(12);
  Publish();
  sequence_.num_settled = 6;
  publisher_.CutChain(&sequence_);
  EXPECT_EQ(sequence_.num_published, 1);
  EXPECT_EQ(sequence_.chain_serial,
            blocks_.cache().serial(Index(sequence_.first().tail[0])));
  sequence_.num_settled = 3;
  publisher_.CutChain(&sequence_);
  EXPECT_EQ(sequence_.num_published, 0);
  EXPECT_EQ(sequence_.chain_serial, sequence_.root_serial);
}

TEST_F(SequencePublisherTest, ACutToABlockThatTheCacheLacksBreaksTheChain) {
  Settle(12);
  Publish();
  blocks_.DropFromCache(Index(sequence_.first().tail[0]));
  sequence_.num_settled = 6;
  publisher_.CutChain(&sequence_);
  EXPECT_EQ(sequence_.chain_serial, kNoSerial);
}

TEST_F(SequencePublisherTest, ARegionIsFoundWithTheBlockBehindIt) {
  Settle(12);
  Compress(2);
  bool is_cached = false;
  ASSERT_TRUE(
      publisher_.PublishRegion(PublicationAt(12), &sequence_, &is_cached));
  EXPECT_TRUE(is_cached);
  EXPECT_EQ(sequence_.num_published, 3);
  const int32_t entry = blocks_.cache().FindRegion(RegionId{7});
  ASSERT_NE(entry, PrefixCache::kNone);
  EXPECT_EQ(sequence_.chain_serial, blocks_.cache().serial(entry));
  EXPECT_TRUE(IsCached(0));  // page 2, the first of the tail
  // The sequence goes on behind the region.
  sequence_.num_settled = 16;
  sequence_.first().tail.emplace_back();
  blocks_.Take({&sequence_.first().tail.back(), 1});
  Publish();
  EXPECT_TRUE(IsCached(1));
  EXPECT_EQ(sequence_.chain_key,
            chain_.KeyAfter(blocks_.cache().key(entry), tokens_, 12, 4));
}

TEST_F(SequencePublisherTest, ARegionThatCouldNotBeFoundIsNotPublished) {
  bool is_cached = false;
  // More tokens are settled than the name says.
  Settle(16);
  Compress(2);
  EXPECT_FALSE(
      publisher_.PublishRegion(PublicationAt(12), &sequence_, &is_cached));
  // An eviction is pending.
  sequence_.num_settled = 12;
  auto pending = std::make_shared<PendingEviction>();
  pending->cut = 12;
  sequence_.first().pending = pending;
  EXPECT_EQ(sequence_.pending_cut(), 12);
  EXPECT_FALSE(
      publisher_.PublishRegion(PublicationAt(12), &sequence_, &is_cached));
  sequence_.first().pending = nullptr;
  EXPECT_TRUE(
      publisher_.PublishRegion(PublicationAt(12), &sequence_, &is_cached));
}

}  // namespace
}  // namespace blockmgr
