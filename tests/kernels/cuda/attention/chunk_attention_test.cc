// Chunk attention, against float64 and the CPU backend.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_checks.h"
#include "tests/kernels/cuda/attention/chunk_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

using Order = simt::Schedule::Order;

// Every sequence has a tail, which its last queries are at the end of.
AttentionShape ShapeWithTails(int32_t head_dim, int32_t group_size) {
  AttentionShape shape = RaggedShape(head_dim, group_size);
  shape.tail_lengths = {19, 40, 64};
  return shape;
}

class ChunkAttentionTest : public DeviceTest {};

TEST_F(ChunkAttentionTest, MatchesFloat64OnRaggedLists) {
  for (const int32_t group_size : {1, 3, 4}) {
    SCOPED_TRACE(group_size);
    ChunkRunner<simt::BFloat16> runner(ShapeWithTails(64, group_size),
                                       {19, 0, 25}, 1);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
  }
  ChunkRunner<simt::Half> half(ShapeWithTails(64, 4), {7, 40, 1}, 2);
  ASSERT_EQ(half.Run({}), "");
  ExpectMatches(half, kHalfTolerance);
}

template <typename T>
void CheckOtherSizes(double tolerance) {
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionShape shape = ShapeWithTails(head_dim, 8);
    shape.page_size = 32;
    shape.order =
        head_dim == 128 ? KvTensorOrder::kHnd : KvTensorOrder::kNhdApart;
    shape.region_lengths = {40, 3};
    shape.tail_lengths = {30};
    ChunkRunner<T> runner(shape, {9}, 3);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, tolerance);
    EXPECT_EQ(runner.bank_conflicts(), 0);
  }
}

TEST_F(ChunkAttentionTest, MatchesFloat64AtOtherSizes) {
  CheckOtherSizes<simt::BFloat16>(kBFloat16Tolerance);
  CheckOtherSizes<simt::Half>(kHalfTolerance);
}

TEST_F(ChunkAttentionTest, MatchesFloat64WithNineToSixteenQueryHeads) {
  for (int32_t group_size = 9; group_size <= 16; ++group_size) {
    SCOPED_TRACE(group_size);
    AttentionShape shape = ShapeWithTails(64, group_size);
    shape.region_lengths = {40, 3};
    shape.tail_lengths = {30};
    ChunkRunner<simt::BFloat16> runner(shape, {7}, 18);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
  }
}

void CheckChunkPools(bool far) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.far = far;
  ForEveryPoolOrder(shape, [](const AttentionShape& in_order) {
    ChunkRunner<simt::BFloat16> runner(in_order, {5, 0, 12}, 17);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
  });
}

TEST_F(ChunkAttentionTest, ReadsPoolsInEveryOrder) { CheckChunkPools(false); }
TEST_F(ChunkAttentionTest, OffsetsBeyond32BitsAreRight) {
  CheckChunkPools(true);
}

TEST_F(ChunkAttentionTest, NeedsNoRegions) {
  AttentionShape shape = ShapeWithTails(64, 2);
  shape.region_lengths = {};
  shape.tail_lengths = {130};
  ChunkRunner<simt::BFloat16> runner(shape, {130}, 4);
  ASSERT_EQ(runner.Run({}), "");
  ExpectMatches(runner, kBFloat16Tolerance);
}

// Blocks of queries far from the first, over many tiles, where both ends are in
// the middle of a page.
TEST_F(ChunkAttentionTest, MatchesFloat64OnLongChunks) {
  for (const int32_t group_size : {1, 3}) {
    SCOPED_TRACE(group_size);
    const int32_t num_queries = group_size == 1 ? 2048 : 300;
    ChunkRunner<simt::BFloat16> runner({.num_heads = 1,
                                        .group_size = group_size,
                                        .head_dim = 64,
                                        .region_lengths = {77},
                                        .tail_lengths = {num_queries + 5}},
                                       {num_queries}, 13);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
  }
}

TEST_F(ChunkAttentionTest, MatchesFloat64WithOneHugeHead) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.region_lengths = {3, 1500, 0, 20};
  shape.tail_lengths = {90, 33};
  ChunkRunner<simt::BFloat16> runner(shape, {70, 33}, 14);
  ASSERT_EQ(runner.Run({}), "");
  ExpectMatches(runner, kBFloat16Tolerance);
}

// Prompt tokens in one chunk or in two give the same bits.
TEST_F(ChunkAttentionTest, ChunksDoNotMatter) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.region_lengths = {50, 7, 0, 20};
  shape.tail_lengths = {90, 33};
  ChunkRunner<simt::BFloat16> runner(shape, {60, 33}, 5);
  ASSERT_EQ(runner.Run({}), "");
  ExpectMatches(runner, kBFloat16Tolerance);
  const auto expected = runner.Bits();
  ASSERT_EQ(runner.RunPart({0, 0}, {17, 1}, {}), "");
  ASSERT_EQ(runner.RunPart({17, 1}, {60, 33}, {}), "");
  EXPECT_EQ(runner.Bits(), expected);
}

AttentionShape ShapeWithWindow(int32_t page_size, int32_t window) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.page_size = page_size;
  shape.region_lengths = {};
  shape.tail_lengths = {150, 230};
  shape.window = window;
  return shape;
}

TEST_F(ChunkAttentionTest, ReadsNoMoreThanTheWindow) {
  for (const int32_t page_size : {16, 32}) {
    for (const int32_t window : {1, 16, 63, 64, 130}) {
      SCOPED_TRACE(window);
      ChunkRunner<simt::BFloat16> runner(ShapeWithWindow(page_size, window),
                                         {40, 7}, 9);
      runner.test().DropBefore(0, std::max(0, 150 - 40 + 1 - window));
      runner.test().DropBefore(1, std::max(0, 230 - 7 + 1 - window));
      ASSERT_EQ(runner.Run({}), "");
      ExpectMatches(runner, kBFloat16Tolerance);
    }
  }
}

// Nor what other tokens of the chunk see, and pages leave meanwhile.
TEST_F(ChunkAttentionTest, ChunksDoNotMatterUnderAWindow) {
  for (const int32_t window : {5, 70, 1000}) {
    SCOPED_TRACE(window);
    ChunkRunner<simt::BFloat16> runner(ShapeWithWindow(16, window), {150, 101},
                                       10);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
    const auto expected = runner.Bits();
    std::vector<int32_t> begins = {0, 0};
    for (const std::vector<int32_t>& ends :
         {std::vector<int32_t>{17, 1}, {90, 100}, {150, 101}}) {
      runner.test().DropBefore(0, std::max(0, begins[0] + 1 - window));
      runner.test().DropBefore(1, std::max(0, 129 + begins[1] + 1 - window));
      ASSERT_EQ(runner.RunPart(begins, ends, {}), "");
      begins = ends;
    }
    EXPECT_EQ(runner.Bits(), expected);
  }
  AttentionShape shape = ShapeWithWindow(16, 0);
  ChunkRunner<simt::BFloat16> all(shape, {150, 101}, 11);
  shape.window = 230;
  ChunkRunner<simt::BFloat16> most(shape, {150, 101}, 11);
  ASSERT_EQ(all.Run({}), "");
  ASSERT_EQ(most.Run({}), "");
  EXPECT_EQ(most.Bits(), all.Bits());
}

AttentionShape RegionsUnderWindow(int32_t page_size, int32_t window) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.page_size = page_size;
  shape.region_lengths = {50, 7, 0, 140};
  shape.tail_lengths = {90, 33};
  shape.window = window;
  shape.cut = 160;
  return shape;
}

// Rows of a region leave the window of one query of the chunk after the other.
TEST_F(ChunkAttentionTest, MatchesFloat64OverRegionsUnderAWindow) {
  for (const int32_t page_size : {16, 32}) {
    for (const int32_t window : {1, 40, 100, 170, 250}) {
      SCOPED_TRACE(testing::Message() << page_size << " " << window);
      ChunkRunner<simt::BFloat16> runner(RegionsUnderWindow(page_size, window),
                                         {60, 33}, 15);
      ASSERT_EQ(runner.Run({}), "");
      ExpectMatches(runner, kBFloat16Tolerance);
      ExpectAgreesWithCpu(runner, {60, 33}, kBFloat16Tolerance);
      const auto expected = runner.Bits();
      ASSERT_EQ(runner.RunPart({0, 0}, {17, 1}, {}), "");
      ASSERT_EQ(runner.RunPart({17, 1}, {60, 33}, {}), "");
      EXPECT_EQ(runner.Bits(), expected);
    }
  }
}

TEST_F(ChunkAttentionTest, AWindowOverRegionsAndAllChangesNoBit) {
  for (const int32_t head_dim : {64, 256}) {
    AttentionShape shape = RegionsUnderWindow(16, 0);
    shape.head_dim = head_dim;
    ChunkRunner<simt::Half> all(shape, {60, 33}, 16);
    shape.window = 250;
    ChunkRunner<simt::Half> window(shape, {60, 33}, 16);
    ASSERT_EQ(all.Run({}), "");
    ASSERT_EQ(window.Run({}), "");
    EXPECT_EQ(window.Bits(), all.Bits());
  }
}

TEST_F(ChunkAttentionTest, AgreesWithTheCpuBackendUnderAWindow) {
  ChunkRunner<simt::BFloat16> runner(ShapeWithWindow(16, 50), {12, 33}, 12);
  ASSERT_EQ(runner.Run({}), "");
  ExpectAgreesWithCpu(runner, {12, 33}, kBFloat16Tolerance);
}

TEST_F(ChunkAttentionTest, SchedulesDoNotMatter) {
  AttentionShape shape = ShapeWithTails(64, 4);
  ChunkRunner<simt::BFloat16> runner(shape, {19, 1, 20}, 6);
  ASSERT_EQ(runner.Run({}), "");
  const auto expected = runner.Bits();
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_EQ(runner.Run({.order = seed == 0 ? Order::kReverse : Order::kRandom,
                          .seed = seed}),
              "");
    EXPECT_EQ(runner.Bits(), expected);
  }
}

TEST_F(ChunkAttentionTest, NanInALiveRowReachesThoseWhoSeeIt) {
  AttentionShape shape = ShapeWithTails(64, 2);
  shape.region_lengths = {};
  shape.tail_lengths = {40};
  ChunkRunner<simt::BFloat16> runner(shape, {40}, 7);
  runner.test().SetValue(runner.test().slots(1)[25], false, 3, std::nanf(""));
  ASSERT_EQ(runner.Run({}), "");
  for (int32_t token = 0; token < 40; ++token) {
    for (int32_t q_head = 0; q_head < 4; ++q_head) {
      EXPECT_EQ(std::isnan(runner.lse()[token * 4 + q_head]),
                q_head / 2 == 1 && token >= 25)
          << token << " " << q_head;
    }
  }
}

TEST_F(ChunkAttentionTest, AgreesWithTheCpuBackend) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.region_lengths = {50, 7, 0, 21};
  shape.tail_lengths = {30, 33};
  ChunkRunner<simt::BFloat16> runner(shape, {12, 33}, 8);
  ASSERT_EQ(runner.Run({}), "");
  ExpectAgreesWithCpu(runner, {12, 33}, kBFloat16Tolerance);
}

}  // namespace
}  // namespace blockmgr
