#include "blockmgr/ragged_region.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Evictions whose lists are compared with the naive rule, all tests together.
// The naive rule is slow, and slower still under sanitizers.
constexpr int32_t kNumEvictions =
    100'000 / (kCaseDivisor * (kCaseDivisor > 1 ? 5 : 1));

ModelLayout SmallLayout() {
  return {.num_layers = 2,
          .num_heads = 2,
          .num_q_heads = 2,
          .head_dim = 8,
          .page_size = 4,
          .dtype = DType::kFloat32,
          .num_blocks = 10};
}

PageId Page(const ModelLayout& layout, int32_t layer, int32_t block,
            int32_t head) {
  return layout.page_id(layer, BlockId{block}, head);
}

// Everything the header promises about a region besides the rule itself.
void ExpectConsistent(const ModelLayout& layout, const RandomEviction& eviction,
                      const RaggedRegion& region) {
  EXPECT_EQ(region.cut(), eviction.cut);
  ASSERT_THAT(region.kept(), ::testing::ElementsAreArray(eviction.kept));
  EXPECT_EQ(
      region.num_entries(),
      std::accumulate(eviction.kept.begin(), eviction.kept.end(), int64_t{0}));
  ASSERT_EQ(std::ssize(region.page_offsets()), layout.pages_per_block() + 1);
  std::set<PageId> pages;
  std::set<BlockId> blocks;
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    EXPECT_EQ(std::ssize(region.pages(i)),
              CeilDiv(eviction.kept[i], layout.page_size));
    EXPECT_LE(region.num_held_pages(i), std::ssize(region.pages(i)));
    for (const PageId page : region.pages(i)) {
      EXPECT_TRUE(pages.insert(page).second) << "page twice";
      blocks.insert(layout.page_block(page));
    }
  }
  EXPECT_EQ(std::ssize(region.page_list()), std::ssize(pages));
  std::vector<BlockId> used;
  for (const BlockId block : eviction.destinations) {
    if (blocks.contains(block)) used.push_back(block);
  }
  EXPECT_THAT(region.blocks(), ::testing::ElementsAreArray(used));
}

// Kept positions head by head, in an order the product did not choose.
std::vector<int32_t> ShuffledPositions(const RegionHistory& history,
                                       const RandomEviction& eviction,
                                       std::mt19937_64& random) {
  std::vector<int32_t> positions;
  for (const NaiveHead& head : history.heads()) {
    std::vector<int32_t> kept = eviction.kept_positions.at(head);
    std::ranges::shuffle(kept, random);
    positions.insert(positions.end(), kept.begin(), kept.end());
  }
  return positions;
}

TEST(RaggedRegionTest, LaysOutLikeTheNaiveRule) {
  const auto num_wanted = static_cast<int32_t>(CaseCount(kNumEvictions));
  int32_t num_evictions = 0;
  for (uint64_t seed = 1; num_evictions < num_wanted; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RegionHistory history(random);
    const int32_t rounds = RandomInt(random, 1, 4);
    for (int32_t round = 0; round < rounds; ++round) {
      const RandomEviction eviction = history.NextEviction(random);
      const bool whole_tail = RandomChance(random, 0.5);
      RaggedRegion region = RaggedRegion::LayOut(
          history.layout(), history.view(eviction, whole_tail),
          eviction.destinations, eviction.kept, eviction.cut);
      ASSERT_EQ(PagesOf(history.layout(), region), history.NaiveNext(eviction));
      ExpectConsistent(history.layout(), eviction, region);
      ASSERT_FALSE(HasFailure());
      ++num_evictions;
      history.Advance(eviction, std::move(region),
                      ShuffledPositions(history, eviction, random));
      history.Grow(RandomInt(random, 1, 3));
    }
  }
}

TEST(RaggedRegionTest, IsTheSameOnOtherBlocks) {
  const ModelLayout layout = SmallLayout();
  const std::vector<BlockId> blocks = {BlockId{3}, BlockId{7}};
  const RaggedRegion region = RaggedRegion::LayOut(
      layout, CacheView{}, blocks, std::vector<int32_t>{9, 0, 4, 2}, 12);
  const std::vector<BlockId> others = {BlockId{8}, BlockId{3}};
  const RaggedRegion moved = region.OnBlocks(layout, blocks, others);
  EXPECT_THAT(moved.blocks(), ElementsAre(BlockId{8}, BlockId{3}));
  EXPECT_EQ(moved.cut(), 12);
  EXPECT_EQ(moved.num_entries(), 15);
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    EXPECT_EQ(moved.num_held_pages(i), region.num_held_pages(i));
    ASSERT_EQ(moved.pages(i).size(), region.pages(i).size());
    for (size_t j = 0; j < moved.pages(i).size(); ++j) {
      const PageId was = region.pages(i)[j];
      const int32_t block = layout.page_block(was) == BlockId{3} ? 8 : 3;
      EXPECT_EQ(moved.pages(i)[j], Page(layout, layout.page_layer(was), block,
                                        layout.page_head(was)));
    }
  }
}

TEST(RaggedRegionTest, CountsOfZeroNeedNoBlock) {
  const ModelLayout layout = SmallLayout();
  const std::vector<BlockId> tail = {BlockId{1}, BlockId{2}};
  const std::vector<int32_t> kept(4, 0);
  for (const std::vector<BlockId>& destinations :
       {std::vector<BlockId>{}, {BlockId{2}}, {BlockId{5}, BlockId{1}}}) {
    const RaggedRegion region = RaggedRegion::LayOut(
        layout, {.tail_blocks = tail}, destinations, kept, 8);
    EXPECT_THAT(region.blocks(), IsEmpty());
    EXPECT_THAT(region.page_list(), IsEmpty());
    EXPECT_THAT(region.page_offsets(), ElementsAre(0, 0, 0, 0, 0));
    EXPECT_EQ(region.num_entries(), 0);
    EXPECT_EQ(region.cut(), 8);
  }
}

TEST(RaggedRegionTest, ShortHeadTakesItsOwnLayerFirst) {
  const ModelLayout layout = SmallLayout();
  // One fresh block, page (0, 1) and (1, 0) unused: head (0, 0) wants two.
  const RaggedRegion region =
      RaggedRegion::LayOut(layout, {}, std::vector<BlockId>{BlockId{3}},
                           std::vector<int32_t>{5, 0, 0, 4}, 8);
  EXPECT_THAT(region.pages(0),
              ElementsAre(Page(layout, 0, 3, 0), Page(layout, 0, 3, 1)));
  EXPECT_EQ(region.num_held_pages(0), 1);
  EXPECT_THAT(region.pages(3), ElementsAre(Page(layout, 1, 3, 1)));
}

TEST(RaggedRegionTest, FullLayerTakesFromTheLowestOtherLayer) {
  const ModelLayout layout = SmallLayout();
  const RaggedRegion region =
      RaggedRegion::LayOut(layout, {}, std::vector<BlockId>{BlockId{3}},
                           std::vector<int32_t>{0, 0, 12, 4}, 12);
  EXPECT_THAT(region.pages(2),
              ElementsAre(Page(layout, 1, 3, 0), Page(layout, 0, 3, 0),
                          Page(layout, 0, 3, 1)));
}

TEST(RaggedRegionTest, OwnPagesComeInTableOrderBeforeFreshOnes) {
  const ModelLayout layout = SmallLayout();
  const std::vector<BlockId> tail = {BlockId{4}, BlockId{2}, BlockId{6}};
  const RaggedRegion region = RaggedRegion::LayOut(
      layout, {.tail_blocks = tail},
      std::vector<BlockId>{BlockId{9}, BlockId{2}, BlockId{4}},
      std::vector<int32_t>{12, 4, 4, 4}, 12);
  EXPECT_THAT(region.pages(0),
              ElementsAre(Page(layout, 0, 4, 0), Page(layout, 0, 2, 0),
                          Page(layout, 0, 9, 0)));
  EXPECT_THAT(region.pages(1), ElementsAre(Page(layout, 0, 4, 1)));
  EXPECT_THAT(region.blocks(), ElementsAre(BlockId{9}, BlockId{2}, BlockId{4}));
}

TEST(RaggedRegionTest, UnusedDestinationIsLeftOut) {
  const ModelLayout layout = SmallLayout();
  const RaggedRegion region = RaggedRegion::LayOut(
      layout, {}, std::vector<BlockId>{BlockId{7}, BlockId{8}},
      std::vector<int32_t>{4, 4, 1, 4}, 8);
  EXPECT_THAT(region.blocks(), ElementsAre(BlockId{7}));
}

TEST(RaggedRegionDeathTest, PagesMustFitTheDestinations) {
  const ModelLayout layout = SmallLayout();
  EXPECT_DEATH(
      RaggedRegion::LayOut(layout, {}, std::vector<BlockId>{BlockId{3}},
                           std::vector<int32_t>{16, 4, 0, 0}, 16),
      "check failed");
}

}  // namespace
}  // namespace blockmgr
