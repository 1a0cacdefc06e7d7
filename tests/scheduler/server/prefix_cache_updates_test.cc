#include "scheduler/server/prefix_cache_updates.h"

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

constexpr int64_t kMuch = int64_t{1} << 30;

PrefixCacheReading EmptyReading() {
  PrefixCacheReading reading;
  reading.cursor = {
      .epoch = 7, .cache = 2, .position = {.change = 11, .entry = 5}};
  reading.page_size = 2;
  return reading;
}

std::vector<v1::PrefixCacheUpdate> All(PrefixCacheReading reading,
                                       int64_t max_bytes) {
  PrefixCacheUpdates updates(std::move(reading));
  std::vector<v1::PrefixCacheUpdate> all;
  v1::PrefixCacheUpdate update;
  while (updates.Next(max_bytes, &update)) all.push_back(update);
  EXPECT_FALSE(updates.Next(max_bytes, &update));
  return all;
}

// Tokens [begin, begin + count), each the number of its position.
std::shared_ptr<const RegionContent> Content(
    std::shared_ptr<const RegionContent> before, int32_t count,
    std::string media = "") {
  auto content = std::make_shared<RegionContent>();
  content->begin = before == nullptr ? 0 : before->end();
  content->before = std::move(before);
  content->tokens.resize(static_cast<size_t>(count));
  std::iota(content->tokens.begin(), content->tokens.end(), content->begin);
  content->media = std::move(media);
  return content;
}

TEST(PrefixCacheUpdatesTest, AReadingWithoutNewsIsAMessage) {
  PrefixCacheReading reading = EmptyReading();
  reading.delta.reset = true;
  reading.delta.current = true;
  const auto all = All(std::move(reading), kMuch);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(all[0].reset());
  EXPECT_TRUE(all[0].current());
  EXPECT_EQ(all[0].page_size(), 2);
  const PrefixCacheCursor cursor = FromProto(all[0].position());
  EXPECT_EQ(cursor.epoch, 7u);
  EXPECT_EQ(cursor.cache, 2u);
  EXPECT_EQ(cursor.position, (PrefixCachePosition{11, 5}));
  v1::PrefixCacheUpdate update;
  EXPECT_FALSE(PrefixCacheUpdates().Next(kMuch, &update));
}

TEST(PrefixCacheUpdatesTest, HasAllOfADelta) {
  const ContentScope scope = {
      .tenant = "t", .lora = "l", .cache_salt = "s", .media = {{1, 2, "m"}}};
  const BlockChain chain(scope);
  PrefixCacheReading reading = EmptyReading();
  reading.delta.removed = {5, 6};
  reading.delta.scopes = {{40, chain.root()}};
  reading.delta.blocks = {
      {.serial = 41, .parent = 40, .media = ""},
      {.serial = 42, .parent = 41, .media = chain.Media(2, 4)}};
  reading.delta.tokens = {100, 101, 102, 103};
  reading.delta.regions = {{.serial = 43,
                            .scope = 40,
                            .tail = 42,
                            .length = 4,
                            .plan = "p",
                            .content = Content(nullptr, 4, chain.Media(0, 4))}};
  const auto all = All(std::move(reading), kMuch);
  ASSERT_EQ(all.size(), 1u);
  v1::PrefixCacheUpdate expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(removed: [ 5, 6 ]
           scopes { id: 40 tenant: "t" lora: "l" cache_salt: "s" }
           blocks {
             id: 41
             parent_id: 40
             token_ids: [ 100, 101 ]
           }
           blocks {
             id: 42
             parent_id: 41
             token_ids: [ 102, 103 ]
             media { begin: -1 length: 2 hash: "m" }
           }
           regions {
             id: 43
             scope_id: 40
             tail_id: 42
             length: 4
             plan: "p"
             last: true
             token_ids: [ 0, 1, 2, 3 ]
             media { begin: 1 length: 2 hash: "m" }
           })pb",
      &expected));
  expected.set_page_size(2);
  *expected.mutable_position() = all[0].position();
  EXPECT_EQ(all[0].DebugString(), expected.DebugString());
}

// 300 blocks, and regions of a prompt of 300,000 tokens, in parts of which one
// has more media than fit a piece; the first item crosses into it.
TEST(PrefixCacheUpdatesTest, LongReadingsComeInMessagesOfABoundedSize) {
  constexpr int32_t kParts[] = {70'000, 130'000, 100'000};
  constexpr int32_t kItems = 20'000;
  std::vector<MediaItem> items;
  items.reserve(kItems);
  for (int32_t i = 0; i < kItems; ++i) {
    items.push_back({69'999 + 5 * i, 3, std::string(64, 'h')});
  }
  const BlockChain chain(ContentScope{.media = items});
  PrefixCacheReading reading = EmptyReading();
  std::shared_ptr<const RegionContent> content;
  for (const int32_t count : kParts) {
    const int32_t begin = content == nullptr ? 0 : content->end();
    content = Content(content, count, chain.Media(begin, begin + count));
  }
  for (EntrySerial serial = 1; serial <= 300; ++serial) {
    reading.delta.blocks.push_back({.serial = serial, .parent = serial - 1});
    reading.delta.tokens.push_back(1);
    reading.delta.tokens.push_back(2);
  }
  for (EntrySerial serial = 401; serial <= 402; ++serial) {
    reading.delta.regions.push_back(
        {.serial = serial, .length = 300'000, .plan = "p", .content = content});
  }
  reading.delta.current = true;
  const auto all = All(std::move(reading), int64_t{1} << 20);
  EXPECT_GT(all.size(), 4u);
  int32_t num_blocks = 0;
  std::map<uint64_t, int32_t> num_tokens;
  std::map<uint64_t, std::vector<MediaItem>> media;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].has_position(), i + 1 == all.size());
    EXPECT_EQ(all[i].current(), i + 1 == all.size());
    EXPECT_LT(all[i].ByteSizeLong(), size_t{2} << 20);
    num_blocks += all[i].blocks_size();
    for (const v1::CachedRegion& piece : all[i].regions()) {
      EXPECT_EQ(piece.length(), 300'000);
      EXPECT_EQ(piece.plan(), "p");
      int32_t& told = num_tokens[piece.id()];
      EXPECT_EQ(piece.first_token(), told);
      for (const uint32_t token : piece.token_ids()) {
        ASSERT_EQ(token, static_cast<uint32_t>(told++));
      }
      for (const v1::MediaItem& item : piece.media()) {
        media[piece.id()].push_back({item.begin(), item.length(), item.hash()});
      }
      EXPECT_EQ(piece.last(),
                told == 300'000 && media[piece.id()].size() == items.size());
    }
  }
  EXPECT_EQ(num_blocks, 300);
  for (const uint64_t id : {401, 402}) {
    EXPECT_EQ(num_tokens[id], 300'000);
    EXPECT_EQ(media[id], items);
  }
}

}  // namespace
}  // namespace blockmgr
