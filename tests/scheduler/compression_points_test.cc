#include "scheduler/compression_points.h"

#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CompressionPointsTest, LargestCutIsWholePagesAndLeavesTheLastToken) {
  EXPECT_EQ(LargestCut(1, 1), 0);
  EXPECT_EQ(LargestCut(2, 1), 1);
  EXPECT_EQ(LargestCut(16, 16), 0);
  EXPECT_EQ(LargestCut(17, 16), 16);
  EXPECT_EQ(LargestCut(32, 16), 16);
  EXPECT_EQ(LargestCut(33, 16), 32);
}

TEST(CompressionPointsTest, RegionBlocksRoundPagesUpToWholeBlocks) {
  // Two heads of 6 entries: 3 pages of 4 in each of 2 layers; 4 in a block.
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const CompressionPoint point = RecencyPoint(41, 40, 6, layout);
  EXPECT_EQ(CountPages(point, layout), 6);
  EXPECT_EQ(CountRegionBlocks(point, layout), 2);
}

TEST(CompressionPointsTest, CallersBudgetsCount) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  CompressionPoint point = RecencyPoint(41, 40, 6, layout);
  point.policy.budget.kind = BudgetKind::kExternal;
  point.budgets = std::make_shared<const std::vector<int32_t>>(
      std::vector<int32_t>{1, 4, 5, 40});
  ResolvePoint(nullptr, layout, &point);
  EXPECT_EQ(CountPages(point, layout), 1 + 1 + 2 + 10);
  EXPECT_EQ(CountRegionBlocks(point, layout), 4);
}

TEST(CompressionPointsTest, PagesAreThoseOfTheShardWithMost) {
  ModelLayout layout = SmallLayout(4, 100, 2, 4);
  layout.num_shards = 2;
  // Every shard by itself: two heads of 7 entries, 3 pages of 4 in each of 2
  // layers; all heads together would have 14, not 12.
  CompressionPoint point = RecencyPoint(41, 40, 7, layout);
  EXPECT_EQ(CountPages(point, layout), 6);
  EXPECT_EQ(CountRegionBlocks(point, layout), 2);
  EXPECT_THAT(ShardPagesOf(point, layout), IsEmpty());
  // A caller's budgets: 2 + 1 + 1 + 0 pages in shard 0, 10 + 0 + 3 + 1 in 1.
  point.policy.budget.kind = BudgetKind::kExternal;
  point.policy.rounding = Rounding::kToken;
  point.budgets = std::make_shared<const std::vector<int32_t>>(
      std::vector<int32_t>{5, 4, 40, 0, 1, 0, 12, 3});
  ResolvePoint(nullptr, layout, &point);
  EXPECT_EQ(CountPages(point, layout), 14);
  EXPECT_THAT(ShardPagesOf(point, layout), ElementsAre(4, 14));
  EXPECT_EQ(CountRegionBlocks(point, layout), 4);
  layout.num_shards = 1;
  EXPECT_EQ(CountPages(point, layout), 18);
  EXPECT_THAT(ShardPagesOf(point, layout), IsEmpty());
}

std::vector<std::pair<int32_t, int32_t>> LengthsAndCuts(
    const std::vector<CompressionPoint>& points) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  pairs.reserve(points.size());
  for (const CompressionPoint& point : points) {
    pairs.emplace_back(point.length, point.cut);
  }
  return pairs;
}

TEST(PlanCompressionsTest, AfterPrefillIsOnceAtTheEndOfThePrompt) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  EXPECT_THAT(LengthsAndCuts(PlanCompressions(Recency(6), 41, layout)),
              ElementsAre(std::pair(41, 40)));
  EXPECT_THAT(PlanCompressions(Recency(6), 4, layout), IsEmpty());
  EXPECT_THAT(PlanCompressions(RequestEviction(), 41, layout), IsEmpty());
}

TEST(PlanCompressionsTest, EveryChunkIsAtMultiplesAndAtTheEnd) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  // At 8 tokens the cut of 4 has nothing to give back.
  EXPECT_THAT(
      LengthsAndCuts(PlanCompressions(Recency(6, EvictionMode::kEveryChunk, 8),
                                      30, layout)),
      ElementsAre(std::pair(16, 12), std::pair(24, 20), std::pair(30, 28)));
  EXPECT_THAT(LengthsAndCuts(PlanCompressions(
                  Recency(6, EvictionMode::kEveryChunk, 8), 24, layout)),
              ElementsAre(std::pair(16, 12), std::pair(24, 20)));
  EXPECT_THAT(LengthsAndCuts(PlanCompressions(
                  Recency(6, EvictionMode::kEveryChunk, 64), 24, layout)),
              ElementsAre(std::pair(24, 20)));
}

TEST(PlanCompressionsTest, TheBudgetIsFixedByTheWholePrompt) {
  const ModelLayout layout = SmallLayout(4, 1000, 2, 2);
  RequestEviction eviction = Recency(0, EvictionMode::kEveryChunk, 40);
  eviction.target = EvictionTarget();
  eviction.target.ratio = *KeepRatio::Parse("0.1");
  for (const CompressionPoint& point :
       PlanCompressions(eviction, 200, layout)) {
    EXPECT_EQ(point.target.kind, EvictionTarget::Kind::kTokens);
    EXPECT_EQ(point.target.tokens, 20);
    EXPECT_EQ(CountRegionBlocks(point, layout), 5);
  }
}

TEST(PlanCompressionsTest, TablesBecomeBudgetsOfACaller) {
  const ModelLayout layout = SmallLayout(4, 1000, 1, 2);
  RequestEviction eviction = Recency(20, EvictionMode::kEveryChunk, 80);
  eviction.policy.budget.kind = BudgetKind::kHeadKv;
  eviction.policy.budget.profile = "needle";
  eviction.policy.budget.share = 1.0;
  eviction.table = std::make_shared<const BudgetTable>(
      HeadScores{.num_layers = 1, .num_heads = 2, .scores = {3.0f, 1.0f}});
  const auto points = PlanCompressions(eviction, 200, layout);
  ASSERT_THAT(points, SizeIs(3));
  for (const CompressionPoint& point : points) {
    EXPECT_EQ(point.policy.budget.kind, BudgetKind::kExternal);
    ASSERT_NE(point.budgets, nullptr);
    // 40 entries of both heads as 3 : 1, in pages of 4: 7.5 and 2.5.
    EXPECT_THAT(*point.budgets, ElementsAre(32, 8));
    EXPECT_EQ(CountPages(point, layout), 10);
  }
}

TEST(PlanCompressionsTest, PercentagesBecomePositions) {
  const ModelLayout layout = SmallLayout(4, 1000, 1, 2);
  RequestEviction eviction = Recency(20, EvictionMode::kEveryChunk, 80);
  eviction.policy.protect = {.sinks = 2, .recent_percent = 25};
  const auto points = PlanCompressions(eviction, 200, layout);
  ASSERT_THAT(points, SizeIs(3));
  for (const CompressionPoint& point : points) {
    EXPECT_EQ(point.policy.protect, (Protection{.sinks = 2, .recent = 5}));
  }
  // A ratio keeps more of a longer sequence: a quarter of 10 and of 20 %.
  eviction.mode = EvictionMode::kDecode;
  eviction.compress_every = 100;
  eviction.target = EvictionTarget();
  eviction.target.ratio = *KeepRatio::Parse("0.1");
  const auto decode = DecodeCompressionOf(eviction, 101, 1000, layout);
  EXPECT_EQ(NextPoint(*decode, 101, layout).policy.protect.recent, 5);
  EXPECT_EQ(NextPoint(*decode, 401, layout).policy.protect.recent, 12);
}

TEST(DecodeCompressionTest, NextPointIsTheNextMultipleAfterThePrompt) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  RequestEviction eviction = Recency(8);
  EXPECT_EQ(DecodeCompressionOf(eviction, 10, 100, layout), nullptr);
  eviction.mode = EvictionMode::kDecode;
  eviction.compress_every = 16;
  const auto decode = DecodeCompressionOf(eviction, 10, 100, layout);
  for (const auto& [length, next] : std::vector<std::pair<int32_t, int32_t>>{
           {0, 26}, {10, 26}, {25, 26}, {26, 42}, {41, 42}, {42, 58}}) {
    const CompressionPoint point = NextPoint(*decode, length, layout);
    EXPECT_EQ(point.length, next) << length;
    EXPECT_EQ(point.cut, (next - 1) / 4 * 4) << length;
  }
}

TEST(CompressionPointsTest, PagesAreOfWhatTheNextTokenAttendsTo) {
  ModelLayout layout = SmallLayout(4, 100, 1, 2);
  layout.group_windows = {16};
  CompressionPoint point = RecencyPoint(42, 40, 8, layout);
  EXPECT_EQ(CountGroupPages(point, 1, layout), 0);
  EXPECT_EQ(CountWindowRegionBlocks(point, layout), 0);
  point.target.window_keep_ratio = {1, 2};
  // Positions 27 to 39, half of which are 6: 12 entries of two heads.
  EXPECT_EQ(CountGroupPages(point, 1, layout), 3);
  // Of all 16 they are 8.
  EXPECT_EQ(CountWindowRegionBlocks(point, layout), 2);
  // All below the cut has fallen out.
  point.cut = 24;
  EXPECT_EQ(CountGroupPages(point, 1, layout), 0);
}

TEST(CompressionPointsTest, NoPointHasMoreBlocksThanTheBound) {
  for (const int32_t window : {4, 7, 16, 30}) {
    ModelLayout layout = SmallLayout(4, 100, 2, 3);
    layout.group_windows = {window};
    for (const Rounding rounding : {Rounding::kPage, Rounding::kToken}) {
      for (const int32_t sinks : {0, 3}) {
        for (int32_t length = 5; length < 60; ++length) {
          CompressionPoint point = RecencyPoint(length, 4, 8, layout);
          point.policy.scorer.sinks = sinks;
          point.policy.rounding = rounding;
          point.target.window_keep_ratio = {3, 10};
          for (; point.cut < length; point.cut += 4) {
            EXPECT_LE(CountGroupPages(point, 1, layout),
                      CountWindowRegionBlocks(point, layout) * 6)
                << window << ' ' << length << ' ' << point.cut;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
