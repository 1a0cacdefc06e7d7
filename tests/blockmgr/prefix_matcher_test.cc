#include "blockmgr/prefix_matcher.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The pages of one prompt of 12 tokens in the cache, one block each.
class PrefixMatcherTest : public testing::Test {
 protected:
  PrefixMatcherTest() : layout_(TwoByTwo(8)), blocks_(layout_), tokens_(12) {
    std::iota(tokens_.begin(), tokens_.end(), 100);
    chain_.Extend(tokens_, layout_.page_size);
    EntrySerial parent = blocks_.cache().AcquireRoot(chain_.root());
    taken_.resize(3);
    blocks_.Take(taken_);
    for (int32_t i = 0; i < 3; ++i) {
      bool inserted = false;
      const int32_t entry =
          blocks_.cache().Insert(taken_[i], chain_.keys()[i], chain_, parent,
                                 tokens_, i * layout_.page_size, &inserted);
      blocks_.pool().AddRef(taken_[i]);
      parent = blocks_.cache().serial(entry);
    }
  }
  PrefixMatch Match(int32_t max_tokens) {
    return PrefixMatcher(layout_, blocks_)
        .Match(chain_, tokens_, max_tokens, nullptr, &memory_);
  }

  const ModelLayout layout_;
  CachedPool blocks_;
  std::vector<int32_t> tokens_;
  BlockChain chain_;
  std::vector<BlockId> taken_;
  MatchMemory memory_;
};

TEST_F(PrefixMatcherTest, FindsWholeBlocksUpToTheLimit) {
  EXPECT_THAT(Match(3).blocks, IsEmpty());
  EXPECT_EQ(Match(11).num_tokens, 8);
  const PrefixMatch match = Match(12);
  EXPECT_EQ(match.num_tokens, 12);
  EXPECT_THAT(match.blocks, ElementsAre(taken_[0], taken_[1], taken_[2]));
  EXPECT_EQ(match.cost.num_looks, 3);
}

TEST_F(PrefixMatcherTest, CountsWhatOnlyTheCacheHolds) {
  EXPECT_EQ(Match(12).cost.num_reclaimable, 0);
  blocks_.Release(taken_[2]);
  EXPECT_EQ(Match(12).cost.num_reclaimable, 1);
  blocks_.pool().Dispatch(StepId{1});
  blocks_.Release(taken_[1]);
  EXPECT_EQ(Match(12).cost.num_reclaimable, 1);
  EXPECT_EQ(Match(12).cost.num_cooling, 1);
  EXPECT_EQ(Match(12).CountSaved(), 3 - 1);
}

TEST_F(PrefixMatcherTest, AMatchIsExtendedByTheFirstRowsOfABlock) {
  PrefixMatch match = Match(8);
  PrefixMatcher(layout_, blocks_).MatchPart(chain_, tokens_, 11, &match);
  EXPECT_TRUE(match.has_part);
  EXPECT_EQ(match.num_tokens, 11);
  EXPECT_EQ(match.CountBlocks(), 2);
  match.DropPart(layout_.page_size);
  EXPECT_EQ(match.num_tokens, 8);
}

TEST_F(PrefixMatcherTest, AMatchTakesTheMemoryThatWasGivenBack) {
  PrefixMatch match = Match(12);
  const BlockId* const memory = match.blocks.data();
  memory_.Give(std::move(match));
  EXPECT_EQ(Match(12).blocks.data(), memory);
}

}  // namespace
}  // namespace blockmgr
