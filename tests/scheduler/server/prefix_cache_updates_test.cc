#include "scheduler/server/prefix_cache_updates.h"

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

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
  const v1::PrefixCacheUpdate& update = all[0];
  EXPECT_FALSE(update.reset());
  EXPECT_FALSE(update.current());
  EXPECT_THAT(update.removed(), ElementsAre(5, 6));
  ASSERT_EQ(update.scopes_size(), 1);
  EXPECT_EQ(update.scopes(0).id(), 40u);
  EXPECT_EQ(update.scopes(0).tenant(), "t");
  EXPECT_EQ(update.scopes(0).lora(), "l");
  EXPECT_EQ(update.scopes(0).cache_salt(), "s");
  ASSERT_EQ(update.blocks_size(), 2);
  EXPECT_EQ(update.blocks(0).id(), 41u);
  EXPECT_EQ(update.blocks(0).parent_id(), 40u);
  EXPECT_THAT(update.blocks(0).token_ids(), ElementsAre(100, 101));
  EXPECT_EQ(update.blocks(0).media_size(), 0);
  EXPECT_EQ(update.blocks(1).parent_id(), 41u);
  EXPECT_THAT(update.blocks(1).token_ids(), ElementsAre(102, 103));
  ASSERT_EQ(update.blocks(1).media_size(), 1);
  EXPECT_EQ(update.blocks(1).media(0).begin(), -1);
  EXPECT_EQ(update.blocks(1).media(0).length(), 2);
  EXPECT_EQ(update.blocks(1).media(0).hash(), "m");
  ASSERT_EQ(update.regions_size(), 1);
  EXPECT_EQ(update.regions(0).id(), 43u);
  EXPECT_EQ(update.regions(0).scope_id(), 40u);
  EXPECT_EQ(update.regions(0).tail_id(), 42u);
  EXPECT_EQ(update.regions(0).length(), 4);
  EXPECT_EQ(update.regions(0).plan(), "p");
  EXPECT_EQ(update.regions(0).first_token(), 0);
  EXPECT_TRUE(update.regions(0).last());
  EXPECT_THAT(update.regions(0).token_ids(), ElementsAre(0, 1, 2, 3));
  ASSERT_EQ(update.regions(0).media_size(), 1);
  EXPECT_EQ(update.regions(0).media(0).begin(), 1);
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
