#include "scheduler/footprint.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/test_requests.h"

namespace blockmgr {
namespace {

CompressionPoint PointAt(int32_t length, int32_t cut, int32_t tokens) {
  CompressionPoint point;
  point.length = length;
  point.cut = cut;
  point.policy = Recency(tokens).policy;
  point.target = Recency(tokens).target;
  return point;
}

TEST(FootprintTest, LargestCutIsWholePagesAndLeavesTheLastToken) {
  EXPECT_EQ(LargestCut(1, 1), 0);
  EXPECT_EQ(LargestCut(2, 1), 1);
  EXPECT_EQ(LargestCut(16, 16), 0);
  EXPECT_EQ(LargestCut(17, 16), 16);
  EXPECT_EQ(LargestCut(32, 16), 16);
  EXPECT_EQ(LargestCut(33, 16), 32);
}

TEST(FootprintTest, RegionBlocksRoundPagesUpToWholeBlocks) {
  // Two heads of 6 entries: 3 pages of 4 in each of 2 layers; 4 in a block.
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const CompressionPoint point = PointAt(41, 40, 6);
  EXPECT_EQ(PagesOf(point, layout), 6);
  EXPECT_EQ(RegionBlocks(point, layout), 2);
}

TEST(FootprintTest, CallersBudgetsCount) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  CompressionPoint point = PointAt(41, 40, 6);
  point.policy.budget.kind = BudgetKind::kExternal;
  point.budgets = std::make_shared<const std::vector<int32_t>>(
      std::vector<int32_t>{1, 4, 5, 40});
  EXPECT_EQ(PagesOf(point, layout), 1 + 1 + 2 + 10);
  EXPECT_EQ(RegionBlocks(point, layout), 4);
}

TEST(FootprintTest, PeakWithoutEvictionIsEveryPosition) {
  const ModelLayout layout = SmallLayout(4, 100);
  EXPECT_EQ(PeakBlocks(1, {}, layout), 1);
  EXPECT_EQ(PeakBlocks(4, {}, layout), 1);
  EXPECT_EQ(PeakBlocks(5, {}, layout), 2);
}

TEST(FootprintTest, PeakWithEvictionIsThePromptOrWhatFollows) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const std::vector<CompressionPoint> points = {PointAt(41, 40, 6)};
  EXPECT_EQ(PeakBlocks(40, points, layout), 10);  // not compressed yet
  EXPECT_EQ(PeakBlocks(60, points, layout), 11);  // the prompt
  EXPECT_EQ(PeakBlocks(76, points, layout), 11);  // 2 + 9
  EXPECT_EQ(PeakBlocks(77, points, layout), 12);  // 2 + 10
}

TEST(FootprintTest, LaterEvictionsShrinkThePeakAgain) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const std::vector<CompressionPoint> points = {PointAt(41, 40, 6),
                                                PointAt(81, 80, 8)};
  // Up to 81: 2 + 11 blocks; then 2 for [0, 80) and the rest.
  EXPECT_EQ(PeakBlocks(81, points, layout), 13);
  EXPECT_EQ(PeakBlocks(120, points, layout), 13);
  EXPECT_EQ(PeakBlocks(140, points, layout), 2 + 15);
}

TEST(FootprintTest, FutileEvictionsDoNotCount) {
  const ModelLayout layout = SmallLayout(4, 100);
  const std::vector<CompressionPoint> points = {PointAt(41, 40, 40)};
  EXPECT_EQ(PeakBlocks(60, points, layout), 15);
}

}  // namespace
}  // namespace blockmgr
