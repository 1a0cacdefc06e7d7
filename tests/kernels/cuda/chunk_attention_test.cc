// Chunk attention under the emulator, against float64 and the CPU backend.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention_checks.h"
#include "tests/kernels/cuda/chunk_runner.h"

namespace blockmgr {
namespace {

using Order = simt::Schedule::Order;

// Every sequence has a tail, which its last queries are at the end of.
AttentionShape ShapeWithTails(int32_t head_dim, int32_t group_size) {
  AttentionShape shape = RaggedShape(head_dim, group_size);
  shape.tail_lengths = {19, 40, 64};
  return shape;
}

TEST(ChunkAttentionTest, MatchesFloat64OnRaggedLists) {
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

TEST(ChunkAttentionTest, MatchesFloat64AtOtherSizes) {
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionShape shape = ShapeWithTails(head_dim, 8);
    shape.page_size = 32;
    shape.order =
        head_dim == 128 ? PoolOrderInMemory::kHnd : PoolOrderInMemory::kNhd;
    shape.region_lengths = {40, 3};
    shape.tail_lengths = {30};
    ChunkRunner<simt::BFloat16> runner(shape, {9}, 3);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
    EXPECT_EQ(runner.bank_conflicts(), 0);
  }
}

TEST(ChunkAttentionTest, NeedsNoRegions) {
  AttentionShape shape = ShapeWithTails(64, 2);
  shape.region_lengths = {};
  shape.tail_lengths = {130};
  ChunkRunner<simt::BFloat16> runner(shape, {130}, 4);
  ASSERT_EQ(runner.Run({}), "");
  ExpectMatches(runner, kBFloat16Tolerance);
}

// Prompt tokens in one chunk or in two give the same bits.
TEST(ChunkAttentionTest, ChunksDoNotMatter) {
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

TEST(ChunkAttentionTest, SchedulesDoNotMatter) {
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

TEST(ChunkAttentionTest, NanInALiveRowReachesThoseWhoSeeIt) {
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

TEST(ChunkAttentionTest, AgreesWithTheCpuBackend) {
  AttentionShape shape = ShapeWithTails(64, 3);
  shape.region_lengths = {50, 7, 0, 21};
  shape.tail_lengths = {30, 33};
  ChunkRunner<simt::BFloat16> runner(shape, {12, 33}, 8);
  ASSERT_EQ(runner.Run({}), "");
  ExpectAgreesWithCpu(runner, {12, 33}, kBFloat16Tolerance);
}

}  // namespace
}  // namespace blockmgr
