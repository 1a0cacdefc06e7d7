#include "blockmgr/prefix_cache.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/region_history.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr BlockId kA{1};
constexpr BlockId kB{2};
constexpr BlockId kC{3};

using Tokens = std::vector<int32_t>;

// Two tokens per block.
class PrefixCacheTest : public ::testing::Test {
 protected:
  static BlockChain Chain(const Tokens& tokens, const ContentScope& scope,
                          int32_t key_bits = 128) {
    BlockChain chain(scope, key_bits);
    chain.Extend(tokens, 2);
    return chain;
  }
  // Publishes `blocks` as the full blocks of `tokens`.
  void Publish(const std::vector<BlockId>& blocks, const Tokens& tokens,
               const BlockChain& chain) {
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    EntrySerial parent = root;
    inserted_.clear();
    for (size_t i = 0; i < blocks.size(); ++i) {
      bool inserted = false;
      parent = cache_.serial(
          cache_.Insert(blocks[i], chain.keys()[i], chain, parent, tokens,
                        static_cast<int32_t>(i) * 2, &inserted));
      inserted_.push_back(inserted);
      cache_.CheckInvariants();
    }
    cache_.ReleaseRoot(root);
    cache_.CheckInvariants();
  }
  void Publish(const std::vector<BlockId>& blocks, const Tokens& tokens,
               const ContentScope& scope = {}) {
    Publish(blocks, tokens, Chain(tokens, scope));
  }
  std::vector<BlockId> Match(const Tokens& tokens,
                             const BlockChain& chain) const {
    std::vector<BlockId> blocks;
    cache_.Match(chain, chain.keys().size(), tokens, &blocks);
    return blocks;
  }
  void Remove(BlockId block) {
    cache_.Remove(Index(block));
    cache_.CheckInvariants();
  }
  // Publishes a region on `blocks` for the tokens before the last page of
  // those that `chain` names, whose block is `tail`.
  int32_t PublishRegion(uint64_t id, const std::vector<BlockId>& blocks,
                        const Tokens& tokens, const BlockChain& chain,
                        BlockId tail, const std::string& plan = "p") {
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{id};
    record->cut = static_cast<int32_t>(tokens.size()) - 2;
    record->blocks = blocks;
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    const RegionName name = {.plan = plan,
                             .history = "h",
                             .length = static_cast<int32_t>(tokens.size())};
    int32_t entry = cache_.FindRegion(name, chain, root, tokens);
    const bool inserted = entry == PrefixCache::kNone;
    if (inserted) {
      entry = cache_.InsertRegion(record, name, chain, root, tokens, tail);
    }
    inserted_ = {inserted};
    cache_.ReleaseRoot(root);
    cache_.CheckInvariants();
    return entry;
  }
  // The entry found, and how many looks that took.
  std::pair<int32_t, int64_t> MatchRegion(const Tokens& tokens,
                                          const BlockChain& chain,
                                          const std::string& plan) const {
    const auto limit = [](int32_t) { return 100; };
    int64_t num_looks = 0;
    const int32_t entry = cache_.MatchRegion(chain, tokens,
                                             {.plan = plan,
                                              .history = {},
                                              .any_history = true,
                                              .max_tokens_over = limit},
                                             &num_looks);
    return {entry, num_looks};
  }

  PrefixCache cache_{8, 2};
  std::vector<bool> inserted_;  // by the last Publish
};

TEST_F(PrefixCacheTest, LooksForRegionsOfItsOwnRootOnly) {
  const Tokens tokens = {1, 2, 3, 4};
  const ContentScope other = {.tenant = "other"};
  Publish({kA, kB}, tokens);
  PublishRegion(1, {BlockId{7}}, tokens, Chain(tokens, {}), kB);
  const auto looks = [&](const ContentScope& scope, const char* plan) {
    return MatchRegion(tokens, Chain(tokens, scope), plan).second;
  };
  EXPECT_EQ(looks({}, "p"), 3);  // one length, two pages compared
  EXPECT_EQ(looks({}, "q"), 0);
  EXPECT_EQ(looks(other, "p"), 0);
  const EntrySerial root = cache_.AcquireRoot(Chain(tokens, other).root());
  EXPECT_EQ(looks(other, "p"), 0);
  cache_.ReleaseRoot(root);
}

TEST_F(PrefixCacheTest, ScopesShareNothing) {
  const Tokens tokens = {1, 2, 3, 4};
  const std::vector<ContentScope> scopes = {
      {},
      {.tenant = "a"},
      {.lora = "a"},
      {.cache_salt = "a"},
      {.media = {{.begin = 2, .length = 1, .hash = "a"}}},
      {.media = {{.begin = 2, .length = 1, .hash = "b"}}},
      {.media = {{.begin = 2, .length = 2, .hash = "a"}}},
      {.media = {{.begin = 3, .length = 1, .hash = "a"}}}};
  // Also with two keys for all contents: some of the media share one.
  for (const int32_t key_bits : {128, 1}) {
    for (size_t i = 0; i < scopes.size(); ++i) {
      for (size_t j = 0; j < scopes.size(); ++j) {
        Publish({kA, kB}, tokens, Chain(tokens, scopes[i], key_bits));
        // Media reaches only into the second block.
        const size_t common = i == j                                     ? 2
                              : (i == 0 || i >= 4) && (j == 0 || j >= 4) ? 1
                                                                         : 0;
        EXPECT_EQ(Match(tokens, Chain(tokens, scopes[j], key_bits)).size(),
                  common)
            << i << " " << j << ", bits of a key: " << key_bits;
        Remove(kA);
        Remove(kB);
      }
    }
  }
}

// One key for all contents: everything collides.
TEST_F(PrefixCacheTest, ContentsOfEqualKeysLiveSideBySide) {
  const auto chain = [](const Tokens& tokens) { return Chain(tokens, {}, 1); };
  const std::vector<Tokens> contents = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  for (size_t i = 0; i < contents.size(); ++i) {
    Publish({BlockId{static_cast<int32_t>(i) + 1}}, contents[i],
            chain(contents[i]));
    EXPECT_THAT(inserted_, ElementsAre(true));
  }
  for (size_t i = 0; i < contents.size(); ++i) {
    EXPECT_THAT(Match(contents[i], chain(contents[i])),
                ElementsAre(BlockId{static_cast<int32_t>(i) + 1}));
  }
  EXPECT_THAT(Match({9, 9}, chain({9, 9})), IsEmpty());
  // From the middle, the end and the beginning of the list.
  for (const size_t gone : {1u, 0u, 3u}) {
    Remove(BlockId{static_cast<int32_t>(gone) + 1});
    EXPECT_THAT(Match(contents[gone], chain(contents[gone])), IsEmpty());
    EXPECT_EQ(Match(contents[2], chain(contents[2])).size(), 1u);
  }
}

TEST_F(PrefixCacheTest, RootIsForgottenWithItsLastUser) {
  const BlockChain chain = Chain({1, 2}, {.tenant = "t"});
  const EntrySerial before = cache_.AcquireRoot(chain.root());
  EXPECT_EQ(cache_.AcquireRoot(chain.root()), before);
  Publish({kA}, {1, 2}, {.tenant = "t"});
  cache_.ReleaseRoot(before);
  cache_.ReleaseRoot(before);
  EXPECT_THAT(Match({1, 2}, chain), ElementsAre(kA));
  Remove(kA);
  EXPECT_NE(cache_.AcquireRoot(chain.root()), before);
}

TEST_F(PrefixCacheTest, StateHashSeesEntriesAndTheirOrder) {
  const uint64_t empty = cache_.StateHash();
  Publish({kA, kB}, {1, 2, 1, 2});
  const uint64_t held = cache_.StateHash();
  EXPECT_NE(held, empty);
  cache_.AddReclaimable(Index(kA));
  EXPECT_NE(cache_.StateHash(), held);
}

// Regions of two contents under keys of one bit: of three policies two have the
// same key.
TEST_F(PrefixCacheTest, RegionOfAnotherPolicyIsAMissThoughTheKeyIsTheSame) {
  const Tokens tokens = {1, 2, 3, 4};
  const Tokens others = {1, 2, 5, 6};
  const auto chain = [](const Tokens& of) { return Chain(of, {}, 1); };
  const std::vector<std::string> plans = {"p", "q", "r"};
  const auto key = [&](const std::string& plan) {
    return chain(tokens).RegionKey(2, plan);
  };
  int32_t num_collisions = 0;
  for (const std::string& plan : plans) {
    for (const std::string& asked : plans) {
      if (asked == plan) continue;
      num_collisions += key(plan) == key(asked) ? 1 : 0;
      Publish({kA, kB}, tokens, chain(tokens));
      const int32_t entry =
          PublishRegion(1, {BlockId{4}}, tokens, chain(tokens), kB, plan);
      // One that makes the length worth a look.
      Publish({BlockId{5}, kC}, others, chain(others));
      const int32_t other =
          PublishRegion(2, {BlockId{6}}, others, chain(others), kC, asked);
      EXPECT_EQ(MatchRegion(tokens, chain(tokens), plan).first, entry);
      EXPECT_EQ(MatchRegion(tokens, chain(tokens), asked).first,
                PrefixCache::kNone)
          << plan << " looked for as " << asked;
      // Nor is it taken for one of this policy when that is made.
      const int32_t third =
          PublishRegion(3, {BlockId{7}}, tokens, chain(tokens), kB, asked);
      ASSERT_THAT(inserted_, ElementsAre(true));
      for (const int32_t gone : {entry, other, third}) cache_.Remove(gone);
      for (const BlockId gone : {kA, kB, kC}) Remove(gone);
    }
  }
  EXPECT_GT(num_collisions, 0);
}

// Tables that are full, and of which entries come and go, do not grow.
TEST(PrefixCacheMemoryTest, DoesNotDependOnWhatIsCached) {
  // Of a power of two, as full as a table is ever filled.
  for (const int32_t num_blocks : {3584, 7168}) {
    PrefixCache cache(num_blocks, 1);
    const EntrySerial root = cache.AcquireRoot(BlockChain().root());
    absl::flat_hash_set<const RegionContent*> contents;
    absl::flat_hash_set<const RegionRecord*> records;
    const int64_t bytes = cache.metadata_bytes(&contents, &records);
    for (int32_t i = 0; i < 20 * num_blocks; ++i) {
      const BlockId block{i % num_blocks};
      if (cache.Contains(block)) cache.Remove(Index(block));
      const Tokens tokens = {i};
      BlockChain chain;
      chain.Extend(tokens, 1);
      bool inserted = false;
      cache.Insert(block, chain.keys()[0], chain, root, tokens, 0, &inserted);
      EXPECT_TRUE(inserted);
    }
    EXPECT_EQ(cache.num_blocks_held(), num_blocks);
    EXPECT_EQ(cache.metadata_bytes(&contents, &records), bytes);
  }
}

using PrefixCacheDeathTest = PrefixCacheTest;

TEST_F(PrefixCacheDeathTest, BlockIsIndexedAtMostOnce) {
  Publish({kA}, {1, 2});
  EXPECT_DEATH(Publish({kA}, {3, 4}), "check failed");
  EXPECT_DEATH(cache_.ReleaseRoot(99), "check failed");
}

}  // namespace
}  // namespace blockmgr
