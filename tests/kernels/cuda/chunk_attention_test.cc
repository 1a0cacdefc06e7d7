// Chunk attention under the emulator, against float64 and the CPU backend.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/chunk_runner.h"

namespace blockmgr {
namespace {

using Order = simt::Schedule::Order;

template <typename T>
void ExpectMatches(ChunkRunner<T>& runner, double tolerance) {
  const AttentionError error = runner.Error();
  // Written so that NaN fails.
  EXPECT_TRUE(error.relative <= tolerance) << error.relative;
  EXPECT_TRUE(error.lse <= 2e-5) << error.lse;
}

// Rounding of the result to bf16 is 2^-9 at most, that of the weights as much
// again; fp16 has eight times the precision.
constexpr double kBFloat16Tolerance = 4e-3;
constexpr double kHalfTolerance = 5e-4;

AttentionShape RaggedShape(int32_t head_dim, int32_t group_size) {
  return {.num_heads = 2,
          .group_size = group_size,
          .head_dim = head_dim,
          .page_size = 16,
          .region_lengths = {0, 70, 33, 0, 5, 129},
          .tail_lengths = {19, 40, 64}};
}

TEST(ChunkAttentionTest, MatchesFloat64OnRaggedLists) {
  for (const int32_t group_size : {1, 3, 4}) {
    SCOPED_TRACE(group_size);
    ChunkRunner<simt::BFloat16> runner(RaggedShape(64, group_size), {19, 0, 25},
                                       1);
    ASSERT_EQ(runner.Run({}), "");
    ExpectMatches(runner, kBFloat16Tolerance);
  }
  ChunkRunner<simt::Half> half(RaggedShape(64, 4), {7, 40, 1}, 2);
  ASSERT_EQ(half.Run({}), "");
  ExpectMatches(half, kHalfTolerance);
}

TEST(ChunkAttentionTest, MatchesFloat64AtOtherSizes) {
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionShape shape = RaggedShape(head_dim, 8);
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
  AttentionShape shape = RaggedShape(64, 2);
  shape.region_lengths = {};
  shape.tail_lengths = {130};
  ChunkRunner<simt::BFloat16> runner(shape, {130}, 4);
  ASSERT_EQ(runner.Run({}), "");
  ExpectMatches(runner, kBFloat16Tolerance);
}

// Prompt tokens in one chunk or in two give the same bits.
TEST(ChunkAttentionTest, ChunksDoNotMatter) {
  AttentionShape shape = RaggedShape(64, 3);
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
  AttentionShape shape = RaggedShape(64, 4);
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
  AttentionShape shape = RaggedShape(64, 2);
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
  AttentionShape shape = RaggedShape(64, 3);
  shape.region_lengths = {50, 7, 0, 21};
  shape.tail_lengths = {30, 33};
  ChunkRunner<simt::BFloat16> runner(shape, {12, 33}, 8);
  ASSERT_EQ(runner.Run({}), "");
  const std::vector<float> expected = runner.test().AttentionOnCpu(
      *MakeCpuBackend(runner.test()), {12, 33}, runner.queries());
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(simt::ToFloat(runner.output()[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_TRUE(std::sqrt(error / norm) <= kBFloat16Tolerance)
      << std::sqrt(error / norm);
}

}  // namespace
}  // namespace blockmgr
