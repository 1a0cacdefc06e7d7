#include "blockmgr/sequence_cache.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

BlockId Block(int32_t index) { return static_cast<BlockId>(index); }

TEST(ShareBlocksTest, TheSameRegionIsShared) {
  const RegionRecord region;
  const RegionRecord other;
  EXPECT_TRUE(ShareBlocks({&region, 8, {}}, {&region, 8, {}}, 4));
  EXPECT_FALSE(ShareBlocks({&region, 8, {}}, {&other, 8, {}}, 4));
  EXPECT_FALSE(ShareBlocks({&region, 8, {}}, {}, 4));
  EXPECT_FALSE(ShareBlocks({}, {}, 4));
}

// Pages are compared at the positions they are of, wherever tails begin.
TEST(ShareBlocksTest, AgreesWithSetsOfPages) {
  std::mt19937 random(3);
  int32_t num_shared = 0;
  for (int32_t trial = 0; trial < 3000; ++trial) {
    const int32_t page_size = 1 << random() % 3;
    const RegionRecord regions[2];
    std::vector<BlockId> tails[2];
    std::set<BlockId> pages[2];
    int32_t cuts[2];
    for (int32_t i = 0; i < 2; ++i) {
      const auto first = static_cast<int32_t>(random() % 4);
      const auto num_pages = static_cast<int32_t>(random() % 6);
      cuts[i] = first * page_size;
      for (int32_t page = first; page < first + num_pages; ++page) {
        // One of two blocks of that page.
        const auto copy = random() % 3 == 0 ? 100 : 200 * (i + 1);
        tails[i].push_back(Block(copy + page));
        pages[i].insert(tails[i].back());
      }
    }
    bool expected = false;
    for (const BlockId block : pages[0]) {
      expected = expected || pages[1].contains(block);
    }
    const auto held = [&](int32_t i) {
      return HeldBlocks{cuts[i] > 0 ? &regions[i] : nullptr, cuts[i], tails[i]};
    };
    ASSERT_EQ(ShareBlocks(held(0), held(1), page_size), expected) << trial;
    ASSERT_EQ(ShareBlocks(held(1), held(0), page_size), expected) << trial;
    num_shared += expected ? 1 : 0;
  }
  EXPECT_GT(num_shared, 300);
  EXPECT_LT(num_shared, 2700);
}

}  // namespace
}  // namespace blockmgr
