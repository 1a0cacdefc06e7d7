#include "scheduler/footprint.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/compression_points.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// Without windows it does not matter.
constexpr int32_t kChunk = 64;

TEST(FootprintTest, PeakWithoutEvictionIsEveryPosition) {
  const ModelLayout layout = SmallLayout(4, 100);
  EXPECT_EQ(PeakBlocks(1, kChunk, {}, layout), 1);
  EXPECT_EQ(PeakBlocks(4, kChunk, {}, layout), 1);
  EXPECT_EQ(PeakBlocks(5, kChunk, {}, layout), 2);
}

TEST(FootprintTest, PeakWithEvictionIsThePromptOrWhatFollows) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const std::vector<CompressionPoint> points = {
      RecencyPoint(41, 40, 6, layout)};
  EXPECT_EQ(PeakBlocks(40, kChunk, points, layout), 10);  // not compressed yet
  EXPECT_EQ(PeakBlocks(60, kChunk, points, layout), 11);  // the prompt
  EXPECT_EQ(PeakBlocks(76, kChunk, points, layout), 11);  // 2 + 9
  EXPECT_EQ(PeakBlocks(77, kChunk, points, layout), 12);  // 2 + 10
}

TEST(FootprintTest, LaterEvictionsShrinkThePeakAgain) {
  const ModelLayout layout = SmallLayout(4, 100, 2, 2);
  const std::vector<CompressionPoint> points = {
      RecencyPoint(41, 40, 6, layout), RecencyPoint(81, 80, 8, layout)};
  // Up to 81: 2 + 11 blocks; then 2 for [0, 80) and the rest.
  EXPECT_EQ(PeakBlocks(81, kChunk, points, layout), 13);
  EXPECT_EQ(PeakBlocks(120, kChunk, points, layout), 13);
  EXPECT_EQ(PeakBlocks(140, kChunk, points, layout), 2 + 15);
}

TEST(FootprintTest, FutileEvictionsDoNotCount) {
  const ModelLayout layout = SmallLayout(4, 100);
  const std::vector<CompressionPoint> points = {
      RecencyPoint(41, 40, 40, layout)};
  EXPECT_EQ(PeakBlocks(60, kChunk, points, layout), 15);
}

// The bound is K + chunk / page_size + 1, whatever the prompt's length.
TEST(FootprintTest, EveryChunkBoundsThePeak) {
  const ModelLayout layout = SmallLayout(16, 100000, 4, 8);
  constexpr int32_t kBound = 512 / 16 + 256 / 16 + 1;
  for (const int32_t num_prompt : {700, 1000, 4096, 10001, 131072}) {
    const auto points = PlanCompressions(
        Recency(512, EvictionMode::kEveryChunk, 256), num_prompt, layout);
    EXPECT_LE(PeakBlocks(num_prompt, kChunk, points, layout), kBound)
        << num_prompt;
  }
  const auto points = PlanCompressions(
      Recency(512, EvictionMode::kEveryChunk, 256), 131072, layout);
  EXPECT_EQ(PeakBlocks(131072, kChunk, points, layout), kBound);
}

// The points of a decode compression, all of them.
std::vector<CompressionPoint> AllPoints(const RequestEviction& eviction,
                                        int32_t num_prompt, int32_t length,
                                        const ModelLayout& layout) {
  std::vector<CompressionPoint> points =
      PlanCompressions(eviction, num_prompt, layout);
  for (int32_t end = num_prompt + eviction.compress_every; end <= length;
       end += eviction.compress_every) {
    CompressionPoint point;
    point.length = end;
    point.cut = (end - 1) / layout.page_size * layout.page_size;
    point.policy = eviction.policy;
    point.target = eviction.target;
    ResolvePoint(nullptr, layout, &point);
    points.push_back(point);
  }
  return points;
}

// Also where nothing may go yet at the first of them: all is protected.
TEST(DecodeCompressionTest, PeakIsThatOfFollowingEveryPoint) {
  const ModelLayout layout = SmallLayout(16, 100000, 4, 8);
  int32_t num_cases = 0;
  for (const char* ratio : {"", "0.3", "0.05"}) {
    for (const int32_t recent : {0, 100, 700}) {
      for (const int32_t every : {16, 64, 512}) {
        for (const int32_t num_prompt : {1, 16, 33, 1000}) {
          for (const int32_t length : {1000, 1001, 1033, 1512, 9000}) {
            RequestEviction eviction = Recency(256);
            eviction.mode = EvictionMode::kDecode;
            eviction.compress_every = every;
            eviction.policy.protect.recent = recent;
            eviction.policy.rounding = Rounding::kToken;
            if (ratio[0] != '\0') {
              eviction.target = EvictionTarget();
              eviction.target.ratio = *KeepRatio::Parse(ratio);
            }
            const auto decode =
                DecodeCompressionOf(eviction, num_prompt, length, layout);
            ASSERT_NE(decode, nullptr);
            const int32_t peak = PeakBlocks(
                length, kChunk, PlanCompressions(eviction, num_prompt, layout),
                layout, Holding{}, decode.get());
            const int32_t walked = PeakBlocks(
                length, kChunk, AllPoints(eviction, num_prompt, length, layout),
                layout);
            EXPECT_EQ(peak, walked) << ratio << " " << recent << " " << every
                                    << " " << num_prompt << " " << length;
            ++num_cases;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_cases, 540);
}

// What a running request still takes, by following it block by block: it
// computes one position after the other, and holds the region plus whole blocks
// from its cut on.
int32_t RemainingByWalking(const RequestState& request, int32_t region,
                           int32_t cut, int32_t begin, int32_t end,
                           const ModelLayout& layout) {
  const auto held = [&](int32_t length) {
    return region + (length - cut + layout.page_size - 1) / layout.page_size;
  };
  const int32_t now = held(begin);
  int32_t most = now;
  for (int32_t length = begin + 1; length <= end; ++length) {
    most = std::max(most, held(length));
    for (const CompressionPoint& point : request.eviction.compressions) {
      if (point.length != length) continue;
      const int32_t next = CountRegionBlocks(point, layout);
      if (next >= region + (point.cut - cut) / layout.page_size) continue;
      region = next;
      cut = point.cut;
    }
  }
  return most - now;
}

TEST(RemainingBlocksTest, FollowsTheRequestToItsEnd) {
  const ModelLayout layout = SmallLayout(4, 100);
  RequestState request;
  for (const int32_t length : {16, 32, 45}) {
    request.eviction.compressions.push_back(
        RecencyPoint(length, LargestCut(length, layout.page_size), 8, layout));
  }
  for (int32_t begin = 0; begin <= 60; ++begin) {
    SequenceCache sequence;
    request.next_compression = 0;
    int32_t region = 0;
    for (const CompressionPoint& point : request.eviction.compressions) {
      if (point.length > begin) break;
      ++request.next_compression;
      region = CountRegionBlocks(point, layout);
      auto record = std::make_unique<RegionRecord>();
      record->cut = point.cut;
      record->blocks.resize(region);
      sequence.first().region = std::move(record);
    }
    sequence.num_reserved = begin;
    const int32_t cut = sequence.cut();
    for (int32_t end = begin; end <= 70; ++end) {
      RequestState rest;
      rest.eviction.compressions.assign(
          request.eviction.compressions.begin() + request.next_compression,
          request.eviction.compressions.end());
      ASSERT_EQ(
          CountRemainingBlocks(request, sequence, {}, end, kChunk, layout),
          RemainingByWalking(rest, region, cut, begin, end, layout))
          << begin << " to " << end;
    }
  }
}

// An order in flight counts as carried out: what it gives back is on its way.
TEST(RemainingBlocksTest, AnOrderInFlightCountsAsDone) {
  const ModelLayout layout = SmallLayout(4, 100);
  RequestState request;
  SequenceCache sequence;
  sequence.num_reserved = 41;
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {}, 44, kChunk, layout), 0);
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {}, 45, kChunk, layout), 1);
  PendingEviction pending;
  pending.cut = 40;
  pending.destinations.resize(3);
  sequence.first().pending =
      std::make_shared<const PendingEviction>(std::move(pending));
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {}, 44, kChunk, layout), 0);
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {}, 53, kChunk, layout), 3);
}

// What the window groups and a tail with a window hold at most, walked step by
// step.
int32_t WalkWindows(const ModelLayout& layout, int32_t length, int32_t chunk,
                    int32_t first_chunk) {
  int32_t peak = 0;
  for (int32_t settled = 0; settled < length;) {
    const int32_t tokens = settled == 0 ? first_chunk : chunk;
    const int32_t end = std::min(length, settled + tokens);
    int32_t held = 0;
    for (int32_t group = 0; group < layout.num_groups(); ++group) {
      const int32_t window = layout.window_of(group);
      // Pages with a position that a query from settled - 1 on attends to.
      for (int32_t i = 0; i < end; i += layout.page_size) {
        held += window == 0 || i + layout.page_size > settled - window ? 1 : 0;
      }
    }
    peak = std::max(peak, held);
    settled = end;
  }
  return peak;
}

TEST(FootprintTest, WindowGroupsTakeTheirWindowAndAChunk) {
  ModelLayout layout = SmallLayout(4, 100, 2, 2);
  layout.group_windows = {8, 20};
  // 128 tokens: 32 blocks of all; (8 + 16) / 4 + 1; (20 + 16) / 4 + 1.
  EXPECT_EQ(PeakBlocks(128, 16, {}, layout), 32 + 7 + 10);
  EXPECT_EQ(PeakBlocks(4, 16, {}, layout), 3);
  layout.group_windows.clear();
  layout.window = 20;
  EXPECT_EQ(PeakBlocks(128, 16, {}, layout), 10);
  EXPECT_EQ(PeakBlocks(1 << 30, 16, {}, layout), 10);
}

TEST(FootprintTest, WindowPeakIsABoundAndReached) {
  for (const int32_t window : {4, 7, 8, 13}) {
    for (const bool only : {false, true}) {
      ModelLayout layout = SmallLayout(4, 100);
      (only ? layout.window : layout.group_windows.emplace_back()) = window;
      for (int32_t chunk = 1; chunk <= 11; ++chunk) {
        for (const int32_t length : {1, 5, 9, 40, 77}) {
          const int32_t bound = PeakBlocks(length, chunk, {}, layout);
          int32_t most = 0;
          for (int32_t first = 1; first <= chunk; ++first) {
            most = std::max(most, WalkWindows(layout, length, chunk, first));
          }
          EXPECT_LE(most, bound) << window << ' ' << chunk << ' ' << length;
          EXPECT_GE(most, bound - (length < 40 ? 1 : 0))
              << window << ' ' << chunk << ' ' << length;
        }
      }
    }
  }
}

TEST(FootprintTest, WhatFallsOutOfWindowsIsStillToBeTakenAgain) {
  ModelLayout layout = SmallLayout(4, 100);
  layout.group_windows = {8};
  RequestState request;
  SequenceCache sequence;
  sequence.num_settled = 20;
  sequence.num_reserved = 36;
  sequence.first().tail.assign(9, BlockId{1});
  // When 36 are settled the groups hold 9 and 2; a chunk of 8 more until 128
  // takes 32 and at most (8 + 8) / 4 + 1.
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {.num_blocks = 2}, 128, 8,
                                 layout),
            23 + 3);
  EXPECT_EQ(
      CountRemainingBlocks(request, sequence, {.num_blocks = 2}, 36, 8, layout),
      0);
  // One of the two is somebody else's, too.
  EXPECT_EQ(CountRemainingBlocks(request, sequence, {.num_blocks = 1}, 128, 8,
                                 layout),
            23 + 4);
}

TEST(WindowRegionFootprintTest, PeaksHaveRoomForRegions) {
  ModelLayout layout = SmallLayout(4, 100, 1, 2);
  layout.group_windows = {16, 40};
  const CompressionPoint plain = RecencyPoint(42, 40, 8, layout);
  CompressionPoint point = plain;
  point.target.window_keep_ratio = {1, 2};
  // 2 heads with half of 16 and of 40: 4 and 10 pages.
  EXPECT_EQ(PeakBlocks(80, 16, std::vector{point}, layout),
            PeakBlocks(80, 16, std::vector{plain}, layout) + 2 + 5);
  EvictionCommand squeeze;
  squeeze.policy = point.policy;
  squeeze.target = point.target;
  EXPECT_EQ(PeakBlocks(80, 16, {}, layout, Holding{}, nullptr, &squeeze),
            PeakBlocks(80, 16, {}, layout) + 2 + 5);
  // All pages there are: a region stands for more of them than it has blocks.
  for (const int32_t length : {12, 16, 20}) {
    point.length = length - 2;
    point.cut = 8;
    CompressionPoint without = point;
    without.target.window_keep_ratio = {};
    EXPECT_EQ(PeakBlocks(length, 16, std::vector{point}, layout),
              PeakBlocks(length, 16, std::vector{without}, layout));
  }
  // There are none to come; what there is of them is not there for the rest.
  RequestState request;
  SequenceCache sequence;
  sequence.num_reserved = 36;
  sequence.first().tail.assign(9, BlockId{1});
  const int32_t without = CountRemainingBlocks(
      request, sequence, {.num_blocks = 8, .num_in_regions = 0}, 80, 8, layout);
  EXPECT_EQ(CountRemainingBlocks(request, sequence,
                                 {.num_blocks = 8, .num_in_regions = 3}, 80, 8,
                                 layout),
            without + 3);
}

}  // namespace
}  // namespace blockmgr
