#include "blockmgr/block_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/blockmgr/region_history.h"

namespace blockmgr {
namespace {

void Append(const void* data, size_t size, std::string* bytes) {
  bytes->append(static_cast<const char*>(data), size);
}

TEST(BlockHashTest, KeyIsXxh3OfTaggedParentAndTokens) {
  const BlockKey parent{0x0123456789ABCDEF, 0xFEDCBA9876543210};
  const std::vector<int32_t> tokens = {7, -1, 1 << 30};
  const uint32_t tag = 0x544F4B31;
  const uint32_t num_tokens = 3;
  std::string bytes;
  Append(&tag, 4, &bytes);
  Append(&num_tokens, 4, &bytes);
  Append(&parent.low, 8, &bytes);
  Append(&parent.high, 8, &bytes);
  Append(tokens.data(), 12, &bytes);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  EXPECT_EQ(HashBlock(parent, tokens), (BlockKey{hash.low64, hash.high64}));
}

TEST(BlockHashTest, KeyDependsOnEveryPartOfItsInput) {
  const BlockKey root = RootBlockKey();
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const BlockKey key = HashBlock(root, tokens);
  EXPECT_FALSE(root == BlockKey{});
  EXPECT_FALSE(key == root);
  EXPECT_FALSE(HashBlock({root.low ^ 1, root.high}, tokens) == key);
  EXPECT_FALSE(HashBlock({root.low, root.high ^ 1}, tokens) == key);
  EXPECT_FALSE(HashBlock(root, std::vector<int32_t>{1, 2, 4, 3}) == key);
  EXPECT_FALSE(HashBlock(root, std::vector<int32_t>{1, 2, 3}) == key);
  EXPECT_FALSE(HashBlock(root, std::vector<int32_t>{1, 2, 3, 4, 0}) == key);
}

TEST(BlockHashTest, LongBlocksAreHashedWhole) {
  std::vector<int32_t> tokens(1024, 5);
  const BlockKey key = HashBlock(RootBlockKey(), tokens);
  tokens.back() = 6;
  EXPECT_FALSE(HashBlock(RootBlockKey(), tokens) == key);
}

TEST(BlockHashTest, KeysChainOverFullBlocks) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  std::vector<BlockKey> keys;
  ExtendBlockKeys(tokens, 3, &keys);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], HashBlock(RootBlockKey(), std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(keys[1], HashBlock(keys[0], std::vector<int32_t>{4, 5, 6}));
}

TEST(BlockHashTest, ExtendingByAnyStepsGivesTheSameKeys) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t page_size = RandomInt(random, 1, 20);
    std::vector<int32_t> tokens(RandomInt(random, 0, 200));
    for (int32_t& token : tokens) token = RandomInt(random, 0, 3);
    std::vector<BlockKey> at_once;
    ExtendBlockKeys(tokens, page_size, &at_once);
    std::vector<BlockKey> in_steps;
    size_t end = 0;
    while (end < tokens.size()) {
      end = std::min(tokens.size(),
                     end + static_cast<size_t>(RandomInt(random, 0, 30)));
      ExtendBlockKeys(std::span(tokens).first(end), page_size, &in_steps);
    }
    EXPECT_EQ(in_steps, at_once);
  }
}

TEST(BlockHashTest, ShorterTokensKeepTheKeysThere) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  std::vector<BlockKey> keys;
  ExtendBlockKeys(tokens, 2, &keys);
  ExtendBlockKeys(std::span(tokens).first(2), 2, &keys);
  EXPECT_EQ(keys.size(), 2u);
}

}  // namespace
}  // namespace blockmgr
