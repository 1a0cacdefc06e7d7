// Blocks that begin as a sequence goes on.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {
namespace {

using StartTokens = std::vector<int32_t>;

constexpr int32_t kStartPage = 4;
constexpr BlockId kFirst{1};
constexpr BlockId kSecond{2};

struct Part {
  BlockId block = kNullBlock;
  int32_t num_tokens = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

class PrefixCacheStartsTest : public ::testing::Test {
 protected:
  static BlockChain Chain(const StartTokens& tokens,
                          const ContentScope& scope) {
    BlockChain chain(scope);
    chain.Extend(tokens, kStartPage);
    return chain;
  }
  // Publishes `block` as the first one of `tokens`, which fill it.
  void Publish(BlockId block, const StartTokens& tokens,
               const ContentScope& scope = {}) {
    const BlockChain chain = Chain(tokens, scope);
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    bool inserted = false;
    cache_.Insert(block, chain.keys()[0], chain, root, tokens, 0, &inserted);
    EXPECT_TRUE(inserted);
    cache_.ReleaseRoot(root);
    cache_.CheckInvariants();
  }
  // Finds a cached block whose first tokens are those of `tokens`.
  Part Find(const StartTokens& tokens, int32_t max_tokens,
            const ContentScope& scope = {}) const {
    Part part;
    part.num_tokens = cache_.MatchPart(PrefixCache::kNone, Chain(tokens, scope),
                                       tokens, 0, max_tokens, &part.block);
    return part;
  }

  PrefixCache cache_{64, kStartPage};
};

TEST_F(PrefixCacheStartsTest, TakesTheYoungerOfEquals) {
  Publish(kFirst, {1, 2, 3, 4});
  Publish(kSecond, {1, 2, 5, 6});
  EXPECT_EQ(Find({1, 2, 3}, 9), (Part{kFirst, 3}));
  EXPECT_EQ(Find({1, 2, 9}, 9), (Part{kSecond, 2}));
}

TEST_F(PrefixCacheStartsTest, StopsBeforeTheLimitAndAFullBlock) {
  Publish(kFirst, {1, 2, 3, 4});
  EXPECT_EQ(Find({1, 2, 3}, 2), (Part{kFirst, 2}));
  EXPECT_EQ(Find({1, 2, 3}, 0), (Part{kNullBlock, 0}));
  EXPECT_EQ(Find({1, 2, 3}, -1), (Part{kNullBlock, 0}));
  EXPECT_EQ(Find({1, 2, 3, 4}, 4), (Part{kFirst, 3}));
}

TEST_F(PrefixCacheStartsTest, NothingOfMedia) {
  const ContentScope scope = {
      .media = {{.begin = 2, .length = 2, .hash = "a picture"}}};
  Publish(kFirst, {1, 2, 3, 4}, scope);
  EXPECT_EQ(Find({1, 2}, 2), (Part{kNullBlock, 0}));
  Publish(kSecond, {5, 6, 7, 8});
  EXPECT_EQ(Find({5, 6, 7}, 3, scope), (Part{kNullBlock, 0}));
  EXPECT_EQ(Find({5, 6, 7}, 2, scope), (Part{kSecond, 2}));
}

TEST_F(PrefixCacheStartsTest, LooksAtAFewOfTheYoungest) {
  for (int32_t i = 1; i <= PrefixCache::kMaxPartLooks + 1; ++i) {
    Publish(BlockId{i}, {1, i, 0, 0});
  }
  EXPECT_EQ(Find({1, 2, 0}, 3), (Part{BlockId{2}, 3}));
  EXPECT_EQ(Find({1, 1, 0}, 3).num_tokens, 1);  // the oldest, one too many
}

// Against a search of everything, with few enough of each start.
TEST_F(PrefixCacheStartsTest, AgreesWithASearchOfEverything) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    for (int32_t i = 0; i < 16; ++i) {
      if (cache_.Contains(BlockId{i})) cache_.Remove(i);
    }
    std::vector<StartTokens> published(16);
    for (int step = 0; step < 60; ++step) {
      const auto index = 1 + static_cast<int32_t>(random() % 15);
      const BlockId block{index};
      if (cache_.Contains(block)) {
        cache_.Remove(index);
        published[static_cast<size_t>(index)].clear();
        cache_.CheckInvariants();
        continue;
      }
      StartTokens tokens;
      for (int i = 0; i < kStartPage; ++i) {
        tokens.push_back(static_cast<int32_t>(random() % 3));
      }
      int32_t best = 0;
      bool is_there = false;
      const auto length = 1 + static_cast<int32_t>(random() % 3);
      for (const StartTokens& other : published) {
        if (other.empty()) continue;
        is_there |= other == tokens;
        int32_t same = 0;
        while (same < length && other[static_cast<size_t>(same)] ==
                                    tokens[static_cast<size_t>(same)]) {
          ++same;
        }
        best = std::max(best, same);
      }
      const StartTokens prompt(tokens.begin(), tokens.begin() + length);
      const Part part = Find(prompt, length);
      ASSERT_EQ(part.num_tokens, best) << "seed " << seed;
      if (best > 0) {
        const StartTokens& found =
            published[static_cast<size_t>(Index(part.block))];
        ASSERT_TRUE(
            std::equal(found.begin(), found.begin() + best, prompt.begin()));
      }
      if (is_there) continue;
      Publish(block, tokens);
      published[static_cast<size_t>(index)] = tokens;
    }
  }
}

}  // namespace
}  // namespace blockmgr
