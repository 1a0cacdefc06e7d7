#include "blockmgr/ragged_region.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/manager_fixture.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// Head (1, 1) has a page too many for its own two, and takes one of (0, 1).
TEST(RaggedRegionTest, ListsThePagesOfTheRuns) {
  const ModelLayout model = TwoByTwo();
  const std::vector<BlockId> blocks = {BlockId{3}, BlockId{7}};
  const RaggedRegion region = RaggedRegion::LayOut(
      model, CacheView{}, blocks, std::vector<int32_t>{8, 0, 5, 9}, 12);
  const auto page = [&](int32_t layer, int32_t block, int32_t head) {
    return model.page_id(layer, BlockId{block}, head);
  };
  EXPECT_THAT(region.page_offsets(), ElementsAre(0, 2, 2, 4, 7));
  EXPECT_THAT(
      region.page_list(),
      ElementsAre(page(0, 3, 0), page(0, 7, 0), page(1, 3, 0), page(1, 7, 0),
                  page(1, 3, 1), page(1, 7, 1), page(0, 3, 1)));
  EXPECT_THAT(region.pages(3),
              ElementsAre(page(1, 3, 1), page(1, 7, 1), page(0, 3, 1)));
  EXPECT_EQ(region.held_pages()[3], 2);
  EXPECT_THAT(region.layout().runs(0), ElementsAre(PageRun{0, 0, 2}));
  EXPECT_THAT(region.layout().runs(3),
              ElementsAre(PageRun{3, 0, 2}, PageRun{1, 0, 1}));
  EXPECT_EQ(region.num_entries(), 22);
  EXPECT_GT(region.metadata_bytes(), region.layout().metadata_bytes());
}

TEST(RaggedRegionTest, IsTheSameOnOtherBlocks) {
  const ModelLayout layout = TwoByTwo();
  const std::vector<BlockId> blocks = {BlockId{3}, BlockId{7}};
  const RaggedRegion region = RaggedRegion::LayOut(
      layout, CacheView{}, blocks, std::vector<int32_t>{9, 0, 4, 2}, 12);
  const std::vector<BlockId> others = {BlockId{8}, BlockId{3}};
  const RaggedRegion moved = region.OnBlocks(layout, blocks, others);
  EXPECT_THAT(moved.blocks(), ElementsAre(BlockId{8}, BlockId{3}));
  EXPECT_EQ(moved.cut(), 12);
  EXPECT_EQ(moved.num_entries(), 15);
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    EXPECT_EQ(moved.held_pages()[i], region.held_pages()[i]);
    ASSERT_EQ(moved.pages(i).size(), region.pages(i).size());
    for (size_t j = 0; j < moved.pages(i).size(); ++j) {
      const PageId was = region.pages(i)[j];
      const int32_t block = layout.page_block(was) == BlockId{3} ? 8 : 3;
      EXPECT_EQ(moved.pages(i)[j],
                layout.page_id(layout.page_layer(was), BlockId{block},
                               layout.page_head(was)));
    }
  }
}

}  // namespace
}  // namespace blockmgr
