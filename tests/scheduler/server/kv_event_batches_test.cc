#include "scheduler/server/kv_event_batches.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/block_hash.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
namespace common = ::smg::grpc::common;

constexpr int64_t kMaxBytes = int64_t{1} << 20;
constexpr EntrySerial kScope = 1;

std::string RootOf(const ContentScope& scope) {
  return BlockChain(scope).root();
}

PrefixCacheReading Reading(bool reset, bool current) {
  PrefixCacheReading reading;
  reading.page_size = 2;
  reading.delta.reset = reset;
  reading.delta.current = current;
  return reading;
}

// A block with the tokens 10 * content and the next.
void AddContent(EntrySerial serial, EntrySerial parent, uint64_t content,
                PrefixCacheDelta* delta) {
  delta->blocks.push_back({.serial = serial, .parent = parent});
  const auto token = static_cast<int32_t>(10 * content);
  delta->tokens.push_back(token);
  delta->tokens.push_back(token + 1);
}
void Add(EntrySerial serial, EntrySerial parent, PrefixCacheDelta* delta) {
  AddContent(serial, parent, serial, delta);
}

class KvEventBatchesTest : public ::testing::Test {
 protected:
  // As "#3 cleared", "#4 stored 2,3 after 1", "#5 removed 2", with the contents
  // of blocks for their hashes.
  std::string Describe(const common::KvEventBatch& batch) {
    std::vector<std::string> events;
    for (const common::KvCacheEvent& event : batch.events()) {
      std::vector<uint32_t> contents;
      for (const int64_t hash : event.removed().block_hashes()) {
        contents.push_back(contents_.at(hash));
      }
      for (const common::KvBlock& block : event.stored().blocks()) {
        EXPECT_EQ(block.block_size(), 2);
        EXPECT_THAT(block.token_ids(), SizeIs(2));
        EXPECT_EQ(block.token_ids(0) + 1, block.token_ids(1));
        contents.push_back(block.token_ids(0) / 10);
        contents_[block.block_hash()] = contents.back();
      }
      events.push_back(
          event.has_cleared()
              ? "cleared"
              : absl::StrCat(event.has_removed() ? "removed " : "stored ",
                             absl::StrJoin(contents, ",")));
      if (event.stored().has_parent_block_hash()) {
        absl::StrAppend(&events.back(), " after ",
                        contents_.at(event.stored().parent_block_hash()));
      }
    }
    return absl::StrCat("#", batch.sequence_number(), " ",
                        absl::StrJoin(events, "; "));
  }
  static common::SubscribeKvEventsRequest Request(uint64_t start) {
    common::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(start);
    request.set_load_records_before_first_batch(true);
    return request;
  }
  std::vector<std::string> Tell(PrefixCacheReading reading,
                                int64_t max_bytes = kMaxBytes) {
    batches_.Take(std::move(reading));
    std::vector<std::string> texts;
    while (const auto* const message = batches_.Next(max_bytes)) {
      texts.push_back(
          Describe(static_cast<const common::KvEventBatch&>(*message)));
    }
    return texts;
  }

  std::map<int64_t, uint32_t> contents_;  // by hash
  TokenRate rate_;
  KvEventBatches batches_{Request(0), &rate_, 8};
};

TEST_F(KvEventBatchesTest, BeginsWithAllThatIsCachedParentsFirst) {
  // The cache is read in the order of its blocks, which is no order of parents.
  PrefixCacheReading first = Reading(true, false);
  first.delta.scopes[kScope] = RootOf({});
  Add(5, 3, &first.delta);
  Add(2, kScope, &first.delta);
  EXPECT_THAT(Tell(std::move(first)), ElementsAre("#1 cleared", "#2 stored 2"));
  PrefixCacheReading second = Reading(false, true);
  second.delta.removed = {4};
  Add(3, 2, &second.delta);
  Add(6, 2, &second.delta);
  EXPECT_THAT(Tell(std::move(second)),
              ElementsAre("#3 stored 3,5 after 2; stored 6 after 2"));
}

TEST_F(KvEventBatchesTest, TellsChangesWithoutAGap) {
  PrefixCacheReading first = Reading(true, true);
  first.delta.scopes[kScope] = RootOf({});
  Add(2, kScope, &first.delta);
  EXPECT_THAT(Tell(std::move(first)), ElementsAre("#1 cleared", "#2 stored 2"));
  PrefixCacheReading second = Reading(false, false);
  Add(3, 2, &second.delta);
  EXPECT_THAT(Tell(std::move(second)), ElementsAre("#3 stored 3 after 2"));
  // Blocks that it was not told of are not removed.
  PrefixCacheReading third = Reading(false, true);
  third.delta.removed = {3, 77};
  Add(4, 2, &third.delta);
  EXPECT_THAT(Tell(std::move(third)),
              ElementsAre("#4 removed 3; stored 4 after 2"));
  PrefixCacheReading reset = Reading(true, true);
  EXPECT_THAT(Tell(std::move(reset)), ElementsAre("#5 cleared"));
}

// An index that has forgotten a block knows it when it is computed again.
TEST_F(KvEventBatchesTest, HashesFollowFromContentAsOnZeroMq) {
  PrefixCacheReading first = Reading(true, true);
  first.delta.scopes[kScope] = RootOf({});
  AddContent(2, kScope, 70, &first.delta);
  AddContent(3, 2, 71, &first.delta);
  KvEventIndex index;
  const std::vector<KvEvent> events = index.Apply(first).blocks;
  Tell(std::move(first));
  const std::map<int64_t, uint32_t> before = contents_;
  EXPECT_THAT(before, SizeIs(2));
  for (const uint64_t hash : events.back().hashes) {
    EXPECT_TRUE(before.contains(static_cast<int64_t>(hash)));
  }
  PrefixCacheReading second = Reading(false, true);
  second.delta.removed = {3, 2};
  second.delta.scopes[4] = RootOf({});
  AddContent(5, 4, 70, &second.delta);
  AddContent(6, 5, 71, &second.delta);
  // The same tokens behind others, or in another scope, are others.
  AddContent(7, 6, 70, &second.delta);
  second.delta.scopes[8] = RootOf({.cache_salt = "salt"});
  AddContent(9, 8, 70, &second.delta);
  Tell(std::move(second));
  EXPECT_THAT(contents_, SizeIs(4));
}

TEST_F(KvEventBatchesTest, LongReadingsAreSeveralBatches) {
  PrefixCacheReading reading = Reading(true, true);
  reading.delta.scopes[kScope] = RootOf({});
  Add(2, kScope, &reading.delta);
  Add(3, 2, &reading.delta);
  Add(4, 3, &reading.delta);
  EXPECT_THAT(Tell(std::move(reading), 1),
              ElementsAre("#1 cleared", "#2 stored 2", "#3 stored 3 after 2",
                          "#4 stored 4 after 3"));
  PrefixCacheReading removal = Reading(false, true);
  removal.delta.removed = {4, 3};
  EXPECT_THAT(Tell(std::move(removal), 1),
              ElementsAre("#5 removed 4", "#6 removed 3"));
}

TEST_F(KvEventBatchesTest, LeavesOutWhatTheProtocolCannotName) {
  PrefixCacheReading reading = Reading(true, true);
  reading.delta.scopes[kScope] = RootOf({.tenant = "somebody"});
  reading.delta.scopes[2] = RootOf({.lora = "adapter", .cache_salt = "salt"});
  reading.delta.regions.push_back({.serial = 3, .scope = 2});
  Add(4, kScope, &reading.delta);
  Add(5, 4, &reading.delta);
  Add(6, 3, &reading.delta);  // behind the region
  Add(7, 2, &reading.delta);
  batches_.Take(std::move(reading));
  batches_.Next(kMaxBytes);
  const auto& batch =
      static_cast<const common::KvEventBatch&>(*batches_.Next(kMaxBytes));
  EXPECT_EQ(Describe(batch), "#2 stored 7");
  EXPECT_EQ(batch.events(0).stored().lora_name(), "adapter");
  EXPECT_EQ(batch.events(0).stored().cache_salt(), "salt");
  EXPECT_EQ(batch.events(0).stored().tier(), common::KV_CACHE_TIER_DEVICE);
  EXPECT_EQ(batches_.Next(kMaxBytes), nullptr);
  PrefixCacheReading removal = Reading(false, true);
  removal.delta.removed = {5, 4, 7};
  EXPECT_THAT(Tell(std::move(removal)), ElementsAre("#3 removed 7"));
}

TEST_F(KvEventBatchesTest, NamesMediaInTheirBlocks) {
  PrefixCacheReading reading = Reading(true, true);
  reading.delta.scopes[kScope] = RootOf({});
  Add(2, kScope, &reading.delta);
  BlockChain chain({.media = {{.begin = 1, .length = 1, .hash = "\xAB!"}}});
  reading.delta.blocks[0].media = chain.Media(0, 2);
  batches_.Take(std::move(reading));
  batches_.Next(kMaxBytes);
  const auto& batch =
      static_cast<const common::KvEventBatch&>(*batches_.Next(kMaxBytes));
  const common::KvBlock& block = batch.events(0).stored().blocks(0);
  ASSERT_EQ(block.extra_keys_size(), 1);
  EXPECT_EQ(block.extra_keys(0).multimodal().identifier(), "ab21");
  EXPECT_EQ(block.extra_keys(0).multimodal().offset(), 1);
}

TEST_F(KvEventBatchesTest, LoadsHaveTheNumberOfTheBatchBefore) {
  CoreStats stats;
  stats.scheduler.num_running = 3;
  const auto load = [&](KvEventBatches* batches) {
    return static_cast<const common::KvEventBatch*>(
        batches->TakeLoad(stats, 0));
  };
  const auto* batch = load(&batches_);
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->sequence_number(), 0u);
  EXPECT_TRUE(batch->load().load_only());
  EXPECT_EQ(batch->load().running_requests(), 3u);
  EXPECT_EQ(batch->load().max_running_requests(), 8u);
  Tell(Reading(true, true));
  batch = load(&batches_);
  EXPECT_EQ(batch->sequence_number(), 1u);
  EXPECT_EQ(batch->load().sample(), 3u);

  // A subscriber that was told of more may go on where it was.
  KvEventBatches later(common::SubscribeKvEventsRequest(), &rate_, 8);
  EXPECT_EQ(load(&later), nullptr);
  KvEventBatches again(Request(40), &rate_, 8);
  again.Take(Reading(true, true));
  const auto* const first =
      static_cast<const common::KvEventBatch*>(again.Next(kMaxBytes));
  EXPECT_EQ(Describe(*first), "#40 cleared");
  EXPECT_EQ(first->snapshot().count(), 1u);
}

}  // namespace
}  // namespace blockmgr
