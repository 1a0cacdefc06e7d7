#include "blockmgr/block_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

void Append(const void* data, size_t size, std::string* bytes) {
  bytes->append(static_cast<const char*>(data), size);
}

void AppendInt(uint32_t value, std::string* bytes) { Append(&value, 4, bytes); }

void AppendText(const std::string& text, std::string* bytes) {
  AppendInt(static_cast<uint32_t>(text.size()), bytes);
  *bytes += text;
}

BlockKey HashOf(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

// The encodings, as the header describes them.
std::string RootBytes(const ContentScope& scope) {
  std::string bytes;
  AppendInt(0x524F4F32, &bytes);
  AppendText(scope.tenant, &bytes);
  AppendText(scope.lora, &bytes);
  AppendText(scope.cache_salt, &bytes);
  return bytes;
}

std::string BlockBytes(const BlockKey& parent,
                       const std::vector<int32_t>& tokens) {
  std::string bytes;
  AppendInt(0x544F4B32, &bytes);
  AppendInt(static_cast<uint32_t>(tokens.size()), &bytes);
  Append(&parent.low, 8, &bytes);
  Append(&parent.high, 8, &bytes);
  Append(tokens.data(), tokens.size() * 4, &bytes);
  return bytes;
}

std::vector<BlockKey> KeysOf(const ContentScope& scope,
                             const std::vector<int32_t>& tokens,
                             int32_t page_size) {
  BlockChain chain(scope);
  chain.Extend(tokens, page_size);
  return {chain.keys().begin(), chain.keys().end()};
}

TEST(BlockHashTest, KeysChainFromTheRootOverFullBlocks) {
  const ContentScope scope = {
      .tenant = "t", .lora = "adapter", .cache_salt = "s"};
  const std::vector<BlockKey> keys = KeysOf(scope, {1, -2, 3, 4, 5, 6, 7}, 3);
  ASSERT_EQ(keys.size(), 2u);
  const BlockKey root = HashOf(RootBytes(scope));
  EXPECT_EQ(keys[0], HashOf(BlockBytes(root, {1, -2, 3})));
  EXPECT_EQ(keys[1], HashOf(BlockBytes(keys[0], {4, 5, 6})));
}

TEST(BlockHashTest, MediaIsNamedInEveryBlockItReachesInto) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const ContentScope scope = {
      .media = {{.begin = 1, .length = 4, .hash = "cat"}}};
  const std::vector<BlockKey> keys = KeysOf(scope, tokens, 2);
  ASSERT_EQ(keys.size(), 4u);
  BlockKey parent = HashOf(RootBytes(scope));
  for (int32_t i = 0; i < 4; ++i) {
    std::string bytes =
        BlockBytes(parent, {tokens[2 * static_cast<size_t>(i)],
                            tokens[2 * static_cast<size_t>(i) + 1]});
    if (i < 3) {
      AppendInt(static_cast<uint32_t>(1 - 2 * i), &bytes);
      AppendInt(4, &bytes);
      AppendText("cat", &bytes);
    }
    parent = HashOf(bytes);
    EXPECT_EQ(keys[static_cast<size_t>(i)], parent) << "block " << i;
  }
}

TEST(BlockHashTest, MediaAreComparedUpToAnEnd) {
  const std::vector<MediaItem> media = {{3, 2, "a"}, {8, 4, "b"}};
  const BlockChain chain(ContentScope{.media = media});
  const BlockChain none(ContentScope{});
  for (const int32_t end : {0, 3, 4, 8, 9, 100}) {
    SCOPED_TRACE(end);
    EXPECT_TRUE(chain.HasMediaOf(chain, end));
    EXPECT_EQ(chain.HasMediaOf(none, end), end <= 3);
    EXPECT_EQ(none.HasMediaOf(chain, end), end <= 3);
    // As what blocks are named after.
    for (const MediaItem& other :
         {MediaItem{8, 4, "c"}, MediaItem{8, 3, "b"}, MediaItem{9, 4, "b"}}) {
      const BlockChain changed(ContentScope{.media = {media[0], other}});
      EXPECT_EQ(chain.HasMediaOf(changed, end), end <= 8);
      EXPECT_EQ(chain.HasMediaOf(changed, end),
                chain.Media(0, end) == changed.Media(0, end));
    }
  }
  EXPECT_EQ(chain.num_media(), 2);
}

// In every range, those of other ranges and of other media included.
TEST(BlockHashTest, HasWhatMediaReturnsAndNothingElse) {
  const std::vector<MediaItem> media = {
      {3, 2, "a"}, {5, 1, "aa"}, {8, 4, std::string(64, 'b')}, {20, 9, "b"}};
  std::set<std::string> encodings = {"x"};
  for (int32_t begin = 0; begin < 32; ++begin) {
    for (int32_t end = begin; end <= 32; ++end) {
      encodings.insert(
          BlockChain(ContentScope{.media = media}).Media(begin, end));
    }
  }
  ASSERT_GT(encodings.size(), 50u);
  for (const auto& items : {media, std::vector<MediaItem>{}}) {
    const BlockChain chain(ContentScope{.media = items});
    for (int32_t begin = 0; begin < 32; ++begin) {
      for (int32_t end = begin; end <= 32; ++end) {
        const std::string own = chain.Media(begin, end);
        EXPECT_EQ(chain.HasNoMedia(begin, end), own.empty());
        for (const std::string& encoded : encodings) {
          ASSERT_EQ(chain.HasMedia(begin, end, encoded), encoded == own)
              << begin << " " << end;
        }
        EXPECT_FALSE(chain.HasMedia(begin, end, own + "x"));
      }
    }
  }
}

TEST(BlockHashTest, DecodesWhatItHasEncoded) {
  const std::string binary("a\0b\xff", 4);
  for (const ContentScope& scope :
       {ContentScope{}, ContentScope{.tenant = "t", .cache_salt = binary},
        ContentScope{.tenant = binary,
        .lora = std::string(256, 'l'),
        .cache_salt = std::string(256, 's')}}) {
    const ContentScope decoded = DecodeRoot(BlockChain(scope).root());
    EXPECT_EQ(decoded.tenant, scope.tenant);
    EXPECT_EQ(decoded.lora, scope.lora);
    EXPECT_EQ(decoded.cache_salt, scope.cache_salt);
  }
  const std::vector<MediaItem> media = {
      {2, 3, binary}, {5, 1, std::string(64, 'h')}, {9, 4, "c"}};
  const BlockChain chain(ContentScope{.media = media});
  for (int32_t begin = 0; begin < 14; ++begin) {
    for (int32_t end = begin; end < 15; ++end) {
      std::vector<MediaItem> expected;
      for (MediaItem item : media) {
        if (item.begin >= end || item.begin + item.length <= begin) continue;
        item.begin -= begin;
        expected.push_back(item);
      }
      EXPECT_EQ(DecodeMedia(chain.Media(begin, end)), expected)
          << begin << " to " << end;
    }
  }
}

TEST(BlockHashTest, LongBlocksAreHashedWhole) {
  std::vector<int32_t> tokens(1024, 5);
  const BlockKey key = KeysOf({}, tokens, 1024)[0];
  tokens.back() = 6;
  EXPECT_FALSE(KeysOf({}, tokens, 1024)[0] == key);
}

TEST(BlockHashTest, ExtendingByAnyStepsGivesTheSameKeys) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t page_size = RandomInt(random, 1, 20);
    std::vector<int32_t> tokens(RandomInt(random, 20, 200));
    for (int32_t& token : tokens) token = RandomInt(random, 0, 3);
    ContentScope scope;
    if (seed % 2 == 0) scope.media = {{.begin = 3, .length = 9, .hash = "x"}};
    BlockChain in_steps(scope);
    size_t end = 0;
    while (end < tokens.size()) {
      end = std::min(tokens.size(),
                     end + static_cast<size_t>(RandomInt(random, 0, 30)));
      in_steps.Extend(std::span(tokens).first(end), page_size);
    }
    const std::vector<BlockKey> at_once = KeysOf(scope, tokens, page_size);
    EXPECT_TRUE(std::ranges::equal(in_steps.keys(), at_once));
  }
}

TEST(BlockHashTest, ShorterTokensKeepTheKeysThere) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  BlockChain chain;
  chain.Extend(tokens, 2);
  chain.Extend(std::span(tokens).first(2), 2);
  EXPECT_EQ(chain.keys().size(), 2u);
}

// Texts of few letters in three fields: joined without lengths they would
// often be equal.
TEST(BlockHashTest, RootsOfDifferentScopesDiffer) {
  std::mt19937_64 random(7);
  const auto text = [&random] {
    std::string letters(static_cast<size_t>(RandomInt(random, 0, 3)), 'a');
    for (char& c : letters) c = RandomInt(random, 0, 1) == 0 ? 'a' : '\0';
    return letters;
  };
  std::map<std::string, std::tuple<std::string, std::string, std::string>> seen;
  for (int32_t i = 0; i < 1'000'000 / kCaseDivisor; ++i) {
    ContentScope scope;
    scope.tenant = text();
    scope.lora = text();
    scope.cache_salt = text();
    const std::tuple fields(scope.tenant, scope.lora, scope.cache_salt);
    const auto [found, is_new] =
        seen.try_emplace(BlockChain(scope).root(), fields);
    ASSERT_EQ(found->second, fields) << "case " << i << " of seed 7";
  }
  EXPECT_GT(seen.size(), 1000u);
}

TEST(BlockHashTest, HighestPriorityOfOverlappingWishesHolds) {
  BlockChain chain;
  chain.SetRetention({{.begin = 0, .end = 10, .retention = {.priority = 50}},
                      {.begin = 4, .end = 6, .retention = {.priority = 80}},
                      {.begin = 8, .end = 12, .retention = {.priority = 20}}});
  ASSERT_NE(chain.RetentionOf(0, 4), nullptr);
  EXPECT_EQ(chain.RetentionOf(0, 4)->priority, 50);
  EXPECT_EQ(chain.RetentionOf(2, 5)->priority, 80);
  EXPECT_EQ(chain.RetentionOf(9, 12)->priority, 50);
  EXPECT_EQ(chain.RetentionOf(10, 14)->priority, 20);
  EXPECT_EQ(chain.RetentionOf(12, 16), nullptr);
}

TEST(BlockHashTest, RegionsAreKeptByWishesForAllOfThem) {
  BlockChain chain;
  chain.SetRetention({{.begin = 0, .end = 4, .retention = {.priority = 90}},
                      {.begin = 0, .end = 8, .retention = {.priority = 50}},
                      {.begin = 8, .end = 12, .retention = {.priority = 70}}});
  EXPECT_EQ(chain.RetentionOfRegion(4)->priority, 90);
  EXPECT_EQ(chain.RetentionOfRegion(8)->priority, 50);
  EXPECT_EQ(chain.RetentionOfRegion(12), nullptr);
  // The block after it: its own wish, or the region's.
  EXPECT_EQ(chain.RetentionOfTail(4, 8)->priority, 90);
  EXPECT_EQ(chain.RetentionOfTail(8, 12)->priority, 70);
  EXPECT_EQ(chain.RetentionOfTail(12, 16), nullptr);
}

TEST(BlockHashTest, BadScopesAreNamed) {
  const auto message = [](const ContentScope& scope) {
    return std::string(ValidateScope(scope, 10).message());
  };
  EXPECT_OK(ValidateScope({}, 10));
  EXPECT_OK(ValidateScope(
      {.tenant = std::string(256, 't'), .media = {{0, 4, "a"}, {4, 6, "b"}}},
      10));
  EXPECT_EQ(message({.lora = std::string(257, 'x')}),
            "lora: expected at most 256 bytes, got 257");
  EXPECT_THAT(message({.media = {{0, 4, "a"}, {3, 1, "b"}}}),
              HasSubstr("media[1].begin: expected 4 to 9"));
  EXPECT_THAT(message({.media = {{8, 3, "a"}}}),
              HasSubstr("media[0].length: expected 1 to 2 tokens, got 3"));
  EXPECT_THAT(message({.media = {{0, 1, ""}}}),
              HasSubstr("media[0].hash: expected 1 to 64 bytes, got 0"));
}

}  // namespace
}  // namespace blockmgr
