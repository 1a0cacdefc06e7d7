// Chunk attention, against float64 and the CPU backend.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_checks.h"
#include "tests/kernels/cuda/attention/chunk_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// Every sequence has a tail, which its last queries are at the end of.
AttentionShape ShapeWithTails(int32_t head_dim, int32_t group_size) {
  AttentionShape shape = RaggedShape(head_dim, group_size);
  shape.tail_lengths = {19, 40, 64};
  return shape;
}

class ChunkAttentionTest : public DeviceTest {};

// The attention of the last tokens of every sequence's tail.
struct ChunkCase {
  AttentionShape shape;
  std::vector<int32_t> num_queries;
};

template <typename T>
void ExpectChunkMatches(const ChunkCase& test, uint64_t seed) {
  ChunkRunner<T> runner(test.shape, test.num_queries, seed);
  ExpectRunMatches(runner, {});
}

TEST_F(ChunkAttentionTest, MatchesFloat64) {
  std::vector<ChunkCase> cases = {
      {ShapeOf(64, 2, {}, {130}), {130}},  // without regions
      {ShapeOf(64, 3, {3, 1500, 0, 20}, {90, 33}), {70, 33}}};
  for (const int32_t group_size : {1, 3, 4}) {
    cases.push_back({ShapeWithTails(64, group_size), {19, 0, 25}});
  }
  for (int32_t group_size = 9; group_size <= 16; ++group_size) {
    cases.push_back({ShapeOf(64, group_size, {40, 3}, {30}), {7}});
  }
  // Blocks of queries far from the first, over many tiles, where both ends are
  // in the middle of a page.
  for (const int32_t group_size : {1, 3}) {
    const int32_t num_queries = group_size == 1 ? 2048 : 300;
    AttentionShape shape = ShapeOf(64, group_size, {77}, {num_queries + 5});
    shape.num_heads = 1;
    cases.push_back({shape, {num_queries}});
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectChunkMatches<simt::BFloat16>(cases[i], i);
  }
  ExpectChunkMatches<simt::Half>({ShapeWithTails(64, 4), {7, 40, 1}}, 2);
}

template <typename T>
void CheckOtherSizes() {
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionShape shape = ShapeOf(64, 8, {40, 3}, {30});
    shape.head_dim = head_dim;
    shape.page_size = 32;
    shape.order =
        head_dim == 128 ? KvTensorOrder::kHnd : KvTensorOrder::kNhdApart;
    ChunkRunner<T> runner(shape, {9}, 3);
    ExpectRunMatches(runner, {});
    EXPECT_EQ(runner.bank_conflicts(), 0);
  }
}

TEST_F(ChunkAttentionTest, MatchesFloat64AtOtherSizes) {
  CheckOtherSizes<simt::BFloat16>();
  CheckOtherSizes<simt::Half>();
}

TEST_F(ChunkAttentionTest, ReadsPoolsInEveryOrder) {
  ForEveryPool(ShapeWithTails(64, 3), [](const AttentionShape& shape) {
    ExpectChunkMatches<simt::BFloat16>({shape, {5, 0, 12}}, 17);
  });
}

template <typename T>
void CheckChunkSinks() {
  std::vector<ChunkCase> cases = {
      {ShapeOf(64, 3, {3, 300, 0, 20}, {90, 33}), {70, 33}},
      {ShapeOf(64, 2, {}, {130}), {130}},
      {ShapeWithTails(128, 1), {7, 40, 1}},
      {ShapeOf(256, 16, {40, 3}, {30}), {7}},
      {ShapeOf(64, 11, {40, 3}, {30}), {7}},
      {ShapeOf(64, 3, {}, {150}), {40}},
      {ShapeOf(64, 4, {50, 7}, {90}), {60}}};
  cases[5].shape.window = 65;
  cases[6].shape.window = 100;
  cases[6].shape.cut = 160;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    cases[i].shape.with_sinks = true;
    ExpectChunkMatches<T>(cases[i], i);
  }
}

TEST_F(ChunkAttentionTest, SinksJoinTheDenominators) {
  CheckChunkSinks<simt::BFloat16>();
  CheckChunkSinks<simt::Half>();
}

TEST_F(ChunkAttentionTest, NoSinksAndFarSinksCostNothing) {
  AttentionShape shape = ShapeOf(64, 3, {250, 7}, {90});
  const std::vector<int32_t> num_queries = {40};
  ExpectNoSinksChangeNoBit<ChunkRunner<simt::Half>>(shape, {}, num_queries, 18);
  shape.with_sinks = true;
  ChunkRunner<simt::Half> runner(shape, num_queries, 19);
  ExpectFarSinksCostNoPrecision(runner, {});
}

// Prompt tokens in one chunk or in two give the same bits.
TEST_F(ChunkAttentionTest, ChunksDoNotMatter) {
  ChunkRunner<simt::BFloat16> runner(ShapeOf(64, 3, {50, 7, 0, 20}, {90, 33}),
                                     {60, 33}, 5);
  ExpectRunMatches(runner, {});
  const auto expected = runner.Bits();
  ASSERT_EQ(runner.RunPart({0, 0}, {17, 1}, {}), "");
  ASSERT_EQ(runner.RunPart({17, 1}, {60, 33}, {}), "");
  EXPECT_EQ(runner.Bits(), expected);
}

AttentionShape ShapeWithWindow(int32_t page_size, int32_t window) {
  AttentionShape shape = ShapeOf(64, 3, {}, {150, 230});
  shape.page_size = page_size;
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
      ExpectRunMatches(runner, {});
    }
  }
}

// Nor what other tokens of the chunk see, and pages leave meanwhile.
TEST_F(ChunkAttentionTest, ChunksDoNotMatterUnderAWindow) {
  for (const int32_t window : {5, 70, 1000}) {
    SCOPED_TRACE(window);
    ChunkRunner<simt::BFloat16> runner(ShapeWithWindow(16, window), {150, 101},
                                       10);
    ExpectRunMatches(runner, {});
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
  ExpectWindowChangesNoBit<ChunkRunner<simt::BFloat16>>(
      ShapeWithWindow(16, 0), 230, {}, std::vector<int32_t>{150, 101}, 11);
}

AttentionShape RegionsUnderWindow(int32_t page_size, int32_t window) {
  AttentionShape shape = ShapeOf(64, 3, {50, 7, 0, 140}, {90, 33});
  shape.page_size = page_size;
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
      ExpectRunMatches(runner, {});
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
    ExpectWindowChangesNoBit<ChunkRunner<simt::Half>>(
        shape, 250, {}, std::vector<int32_t>{60, 33}, 16);
  }
}

TEST_F(ChunkAttentionTest, SchedulesDoNotMatter) {
  ChunkRunner<simt::BFloat16> runner(ShapeWithTails(64, 4), {19, 1, 20}, 6);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) { return runner.Run(schedule); },
      [&] { return runner.Bits(); });
}

TEST_F(ChunkAttentionTest, NanInALiveRowReachesThoseWhoSeeIt) {
  ChunkRunner<simt::BFloat16> runner(ShapeOf(64, 2, {}, {40}), {40}, 7);
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

}  // namespace
}  // namespace blockmgr
