// Footprints of evictions whose budgets come from a table: what a shard has of
// them follows no simple rule, so it is compared with walking every point.

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/compression_points.h"
#include "scheduler/footprint.h"
#include "tests/testing/test_requests.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr int32_t kTableChunk = 64;

RequestEviction DecodeByTable(int32_t tokens, int32_t every,
                              BudgetTable table) {
  RequestEviction eviction = Recency(tokens);
  eviction.mode = EvictionMode::kDecode;
  eviction.compress_every = every;
  UseTable(std::move(table), &eviction);
  return eviction;
}

std::vector<CompressionPoint> AllPoints(const DecodeCompression& decode,
                                        int32_t end,
                                        const ModelLayout& layout) {
  std::vector<CompressionPoint> points;
  for (int32_t length = decode.begin; length + decode.every <= end;
       length += decode.every) {
    points.push_back(NextPoint(decode, length, layout));
  }
  return points;
}

// Which heads a table favours decides what the largest shard has, and their
// shares change with the cut.
TEST(TableFootprintTest, AnEarlyRegionMayBeTheLargest) {
  ModelLayout layout = SmallLayout(4, 1000, 1, 4);
  layout.num_shards = 2;
  RequestEviction eviction = DecodeByTable(
      100, 40,
      HeadScores{
          .num_layers = 1, .num_heads = 4, .scores = {2.0f, 0.0f, 1.0f, 1.0f}});
  eviction.policy.budget.share = 1.0;
  const auto decode = DecodeCompressionOf(eviction, 100, 340, layout);
  const auto points = AllPoints(*decode, 340, layout);
  ASSERT_GT(CountPages(points.front(), layout),
            CountPages(points.back(), layout));
  EXPECT_GE(PeakBlocks(340, kTableChunk, {}, layout, {}, decode.get()),
            PeakBlocks(340, kTableChunk, points, layout));
}

// One shard, whole pages: a table divides a total that is known.
TEST(TableFootprintTest, PeakBoundsThatOfFollowingEveryPoint) {
  int32_t num_exact = 0;
  int32_t num_larger_before = 0;
  for (uint32_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    ModelLayout layout = SmallLayout(4, 100000, 2, 4);
    layout.num_shards = 1 << random() % 3;
    RequestEviction eviction =
        DecodeByTable(static_cast<int32_t>(20 + random() % 200),
                      static_cast<int32_t>(4 * (1 + random() % 20)),
                      SkewedTable(layout, seed));
    const bool by_page = random() % 2 == 0;
    eviction.policy.protect.recent =
        random() % 3 == 0 ? static_cast<int32_t>(random() % 60) : 0;
    if (!by_page) eviction.policy.rounding = Rounding::kToken;
    const auto num_prompt = static_cast<int32_t>(1 + random() % 300);
    const int32_t end = num_prompt + static_cast<int32_t>(random() % 900);
    const auto decode = DecodeCompressionOf(eviction, num_prompt, end, layout);
    const auto points = AllPoints(*decode, end, layout);
    const int32_t walked = PeakBlocks(end, kTableChunk, points, layout);
    const int32_t peak =
        PeakBlocks(end, kTableChunk, {}, layout, Holding{}, decode.get());
    ASSERT_GE(peak, walked);
    int64_t most = 0;
    for (const CompressionPoint& point : points) {
      most = std::max(most, CountPages(point, layout));
    }
    if (!points.empty()) {
      const int64_t last = CountPages(points.back(), layout);
      num_larger_before += most > last ? 1 : 0;
      if (layout.num_shards == 1 && by_page) {
        ASSERT_EQ(peak, walked);
        ASSERT_EQ(most, last);
        ++num_exact;
      }
    }
    // Lengths on the way, too, and whoever goes on for longer.
    const auto half = (num_prompt + end) / 2;
    ASSERT_GE(PeakBlocks(half, kTableChunk, {}, layout, {}, decode.get()),
              PeakBlocks(half, kTableChunk, points, layout));
    const auto longer = WithEnd(*decode, end + 200, layout);
    const auto anew =
        DecodeCompressionOf(eviction, num_prompt, end + 200, layout);
    ASSERT_EQ(longer->region_blocks, anew->region_blocks);
    ASSERT_EQ(longer->end, anew->end);
    ASSERT_EQ(WithEnd(*longer, end, layout)->end, end + 200);
  }
  EXPECT_GT(num_exact, 50);
  EXPECT_GT(num_larger_before, 50);
}

RequestEviction ChunksByTable(const ModelLayout& layout, uint32_t seed) {
  std::mt19937 random(seed);
  const auto up_to = [&random](int32_t most) {
    return 1 + static_cast<int32_t>(random() % most);
  };
  RequestEviction eviction = Recency(layout.page_size * up_to(40));
  eviction.mode = EvictionMode::kEveryChunk;
  eviction.compress_every = layout.page_size * up_to(30);
  eviction.share_prefix = true;
  if (up_to(2) == 1) eviction.policy.rounding = Rounding::kToken;
  if (up_to(3) == 1) {
    eviction.policy.protect = {.sinks = up_to(4), .recent = up_to(8)};
  }
  UseTable(SkewedTable(layout, seed), &eviction);
  eviction.policy.budget.share = up_to(3);
  return eviction;
}

// What is shared at a length depends on that length alone: prompts that agree
// up to it have the same budgets there.
TEST(TableFootprintTest, SharersAgreeOnBudgets) {
  const ModelLayout layout = SmallLayout(4, 100000, 2, 4);
  for (const EvictionMode mode :
       {EvictionMode::kAfterPrefill, EvictionMode::kEveryChunk,
        EvictionMode::kDecode}) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      RequestEviction eviction = ChunksByTable(layout, seed);
      eviction.mode = mode;
      const SharedCompression sharing = ShareCompression(eviction, 700, layout);
      ASSERT_EQ(sharing.plan, ShareCompression(eviction, 901, layout).plan);
      for (const int32_t num_prompt : {700, 901}) {
        const auto points = PlanCompressions(eviction, num_prompt, layout);
        ASSERT_THAT(points, Not(IsEmpty()));
        for (const CompressionPoint& point : points) {
          const CompressionPoint shared =
              SharedPointAt(sharing, point.length, layout);
          ASSERT_EQ(shared.cut, point.cut);
          ASSERT_EQ(shared.policy, point.policy);
          ASSERT_EQ(shared.policy.budget.kind, BudgetKind::kExternal);
          ASSERT_EQ(*shared.budgets, *point.budgets);
          ASSERT_EQ(
              *shared.budgets,
              TableBudgets(eviction.policy, eviction.target, ShapeOf(layout),
                           {.cut = point.cut, .length = point.length},
                           *eviction.table));
        }
      }
    }
  }
}

// Names of what is shared differ where the tables do, whatever they are called.
TEST(TableFootprintTest, SharingIsByTheTablesContent) {
  const ModelLayout layout = SmallLayout(4, 1000, 2, 4);
  RequestEviction eviction = ChunksByTable(layout, 2);
  const std::string plan = ShareCompression(eviction, 100, layout).plan;
  UseTable(SkewedScores(layout, 2), &eviction);
  EXPECT_EQ(ShareCompression(eviction, 100, layout).plan, plan);
  HeadScores other = SkewedScores(layout, 2);
  other.scores.back() += 1.0f;
  UseTable(other, &eviction);
  EXPECT_NE(ShareCompression(eviction, 100, layout).plan, plan);
}

// Admission counts on it: who goes on from what another prompt has left never
// holds more, replays included, than by its own compressions alone. (No head's
// budget grows faster than the cut.)
TEST(TableFootprintTest, AnothersCompressionsDoNotRaiseThePeak) {
  int32_t num_cases = 0;
  for (uint32_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int32_t page_size = 1 << random() % 3;
    const uint32_t longest = 100u * static_cast<uint32_t>(page_size);
    ModelLayout layout = SmallLayout(page_size, 100000, 2, 4);
    layout.num_shards = 1 << random() % 3;
    const RequestEviction eviction = ChunksByTable(layout, seed);
    const auto num_prompt = static_cast<int32_t>(2 + random() % longest);
    const int32_t end = num_prompt + 30;
    const auto own = PlanCompressions(eviction, num_prompt, layout);
    const int32_t peak = PeakBlocks(end, kTableChunk, own, layout);
    const SharedCompression sharing =
        ShareCompression(eviction, num_prompt, layout);
    for (int32_t length = page_size; length < num_prompt; length += page_size) {
      const CompressionPoint found = SharedPointAt(sharing, length, layout);
      if (found.cut == 0 ||
          CountRegionBlocks(found, layout) >= found.cut / layout.page_size) {
        continue;
      }
      std::vector<CompressionPoint> adopted = own;
      const auto at = std::ranges::lower_bound(adopted, length, {},
                                               &CompressionPoint::length);
      if (at != adopted.end() && at->length == length) continue;
      adopted.insert(at, found);
      ASSERT_LE(PeakBlocks(end, kTableChunk, adopted, layout), peak) << length;
      ++num_cases;
    }
  }
  EXPECT_GT(num_cases, 10000);
}

}  // namespace
}  // namespace blockmgr
