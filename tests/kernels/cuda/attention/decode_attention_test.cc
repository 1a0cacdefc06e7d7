// Decode attention, against float64.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"
#include "tests/kernels/cuda/attention/attention_checks.h"
#include "tests/kernels/cuda/attention/decode_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

using Order = simt::Schedule::Order;

class DecodeAttentionTest : public DeviceTest {};

template <typename T>
void ExpectDecodeMatches(const AttentionShape& shape,
                         const DecodeOptions& options) {
  DecodeRunner<T> runner(shape, 1);
  ExpectRunMatches(runner, options);
}

TEST_F(DecodeAttentionTest, MatchesFloat64OnRaggedLists) {
  for (const int32_t group_size : {1, 3, 4, 8}) {
    SCOPED_TRACE(group_size);
    const AttentionShape shape = RaggedShape(128, group_size);
    ExpectDecodeMatches<simt::BFloat16>(shape, {.num_ctas = 3});
    ExpectDecodeMatches<simt::Half>(shape, {.num_ctas = 3});
  }
  for (const int32_t head_dim : {64, 256}) {
    SCOPED_TRACE(head_dim);
    ExpectDecodeMatches<simt::BFloat16>(RaggedShape(head_dim, 5),
                                        {.num_ctas = 2});
  }
  // Without regions.
  ExpectDecodeMatches<simt::BFloat16>(ShapeOf(64, 2, {}, {33, 1, 100}),
                                      {.num_ctas = 4});
}

// A list with a region and a tail at every shape that kernels exist for, in
// either mode: each of them is its own instance of the kernel.
template <typename T>
void CheckEveryShape() {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t page_size : {16, 32}) {
      for (const int32_t group_size : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
        SCOPED_TRACE(testing::Message()
                     << head_dim << " " << page_size << " " << group_size);
        AttentionShape shape = ShapeOf(head_dim, group_size, {20, 33}, {19});
        shape.page_size = page_size;
        DecodeRunner<T> runner(shape, 17);
        for (const int32_t chunk_tiles : {0, 1}) {
          ExpectRunMatches(runner, {.num_ctas = 2, .chunk_tiles = chunk_tiles});
        }
      }
    }
  }
}

TEST_F(DecodeAttentionTest, MatchesFloat64AtEveryShape) {
  CheckEveryShape<simt::BFloat16>();
  CheckEveryShape<simt::Half>();
}

// Instances of 16 query heads, some of them nobody's.
TEST_F(DecodeAttentionTest, MatchesFloat64WithNineToSixteenQueryHeads) {
  for (int32_t group_size = 9; group_size < 16; ++group_size) {
    SCOPED_TRACE(group_size);
    const AttentionShape shape = ShapeOf(64, group_size, {70, 0}, {30});
    DecodeRunner<simt::BFloat16> runner(shape, 21);
    ExpectRunMatches(runner, {.num_ctas = 2, .with_logits = true});
    runner.CheckLogits();
    ExpectDecodeMatches<simt::Half>(shape, {.num_ctas = 2, .chunk_tiles = 1});
  }
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    ExpectDecodeMatches<simt::BFloat16>(ShapeOf(head_dim, 16, {40, 0}, {30}),
                                        {.num_ctas = 3});
  }
}

template <typename T>
void CheckTensorsOfEngines() {
  for (const KvTensorOrder order :
       {KvTensorOrder::kHnd, KvTensorOrder::kNhdApart,
        KvTensorOrder::kNhdPairs}) {
    for (const int32_t page_size : {16, 32}) {
      for (const int32_t head_dim : {64, 128, 256}) {
        SCOPED_TRACE(testing::Message() << page_size << " " << head_dim);
        AttentionShape shape = RaggedShape(head_dim, 4);
        shape.order = order;
        shape.page_size = page_size;
        ExpectDecodeMatches<T>(shape, {.num_ctas = 3});
      }
    }
  }
}

TEST_F(DecodeAttentionTest, ReadsTheTensorsOfEngines) {
  CheckTensorsOfEngines<simt::BFloat16>();
  CheckTensorsOfEngines<simt::Half>();
}

TEST_F(DecodeAttentionTest, ReadsPoolsInEveryOrder) {
  ForEveryPool(RaggedShape(64, 4), [](const AttentionShape& shape) {
    ExpectDecodeMatches<simt::BFloat16>(shape, {.num_ctas = 3});
  });
}

// Windows that begin and end anywhere in tiles and pages.
AttentionShape TailWindowShape(int32_t page_size, int32_t window) {
  AttentionShape shape = ShapeOf(64, 4, {}, {1, 300, 129, 64, 65 + window});
  shape.page_size = page_size;
  shape.window = window;
  return shape;
}

TEST_F(DecodeAttentionTest, ReadsNoMoreThanTheWindow) {
  for (const int32_t page_size : {16, 32}) {
    for (const int32_t window : {1, 16, 63, 64, 65, 130}) {
      SCOPED_TRACE(window);
      const AttentionShape shape = TailWindowShape(page_size, window);
      DecodeRunner<simt::BFloat16> runner(shape, 15);
      for (int32_t s = 0; s < runner.test().num_sequences(); ++s) {
        runner.test().DropBefore(s,
                                 std::max(0, shape.tail_lengths[s] - window));
      }
      ExpectRunMatches(runner, {.num_ctas = 3});
      ExpectRunMatches(runner, {.num_ctas = 2, .chunk_tiles = 1});
      EXPECT_LE(runner.tile_offsets().back(),
                runner.test().num_lists() * (window / 64 + 2));
    }
  }
}

TEST_F(DecodeAttentionTest, AWindowOverEverythingChangesNoBit) {
  ExpectWindowChangesNoBit<DecodeRunner<simt::BFloat16>>(
      TailWindowShape(16, 0), 300, {.num_ctas = 3}, 16);
  AttentionShape with_regions = RaggedShape(128, 16);
  with_regions.tail_lengths = {19, 1, 64};
  with_regions.cut = 200;
  ExpectWindowChangesNoBit<DecodeRunner<simt::Half>>(with_regions, 264,
                                                     {.num_ctas = 3}, 20);
}

// Regions all of whose rows are in the window, or some, or none.
TEST_F(DecodeAttentionTest, MatchesFloat64OverRegionsUnderAWindow) {
  for (const int32_t page_size : {16, 32}) {
    for (const int32_t window : {1, 16, 100, 230, 400}) {
      SCOPED_TRACE(testing::Message() << page_size << " " << window);
      AttentionShape shape = RaggedShape(64, 4);
      shape.page_size = page_size;
      shape.tail_lengths = {19, 1, 64};
      shape.window = window;
      shape.cut = 200;
      DecodeRunner<simt::BFloat16> runner(shape, 19);
      ExpectRunMatches(runner, {.num_ctas = 3});
      ExpectRunMatches(runner, {.num_ctas = 2, .chunk_tiles = 1});
    }
  }
}

TEST_F(DecodeAttentionTest, EmptyListsGiveZeroAndMinusInfinity) {
  DecodeRunner<simt::BFloat16> runner(ShapeOf(64, 4, {0, 20, 0, 0}, {0, 0}), 7);
  ASSERT_EQ(runner.Run({.num_ctas = 2}), "");
  for (const int32_t list : {0, 2, 3}) {
    for (int32_t g = 0; g < 4; ++g) {
      EXPECT_EQ(runner.lse()[list * 4 + g],
                -std::numeric_limits<float>::infinity());
      for (int32_t i = 0; i < 64; ++i) {
        EXPECT_EQ(runner.output()[(list * 4 + g) * 64 + i].bits, 0);
      }
    }
  }
  ExpectMatches(runner);
}

template <typename T>
void CheckDecodeSinks() {
  std::vector<AttentionShape> shapes = {
      RaggedShape(128, 4), RaggedShape(256, 5), TailWindowShape(16, 65)};
  for (const int32_t group_size : {1, 3, 8, 11, 16}) {
    shapes.push_back(RaggedShape(64, group_size));
  }
  // A list that most CTAs share.
  shapes.push_back(ShapeOf(64, 8, {10, 900, 3, 0}, {5, 17}));
  AttentionShape region_window = RaggedShape(64, 4);
  region_window.tail_lengths = {19, 1, 64};
  region_window.window = 100;
  region_window.cut = 200;
  shapes.push_back(region_window);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(i);
    shapes[i].with_sinks = true;
    DecodeRunner<T> runner(shapes[i], 22);
    for (const int32_t chunk_tiles : {0, 1}) {
      const DecodeOptions options{.num_ctas = 7,
                                  .chunk_tiles = chunk_tiles,
                                  .with_logits = shapes[i].window == 0};
      ExpectRunMatches(runner, options);
      if (options.with_logits) runner.CheckLogits();
    }
  }
}

TEST_F(DecodeAttentionTest, SinksJoinTheDenominators) {
  CheckDecodeSinks<simt::BFloat16>();
  CheckDecodeSinks<simt::Half>();
}

TEST_F(DecodeAttentionTest, SinksAreAllThatEmptyListsHave) {
  AttentionShape shape = ShapeOf(64, 4, {0, 20, 0, 0}, {0, 0});
  shape.with_sinks = true;
  DecodeRunner<simt::BFloat16> runner(shape, 7);
  for (const int32_t chunk_tiles : {0, 1}) {
    ASSERT_EQ(runner.Run({.num_ctas = 2, .chunk_tiles = chunk_tiles}), "");
    for (const int32_t list : {0, 2, 3}) {
      for (int32_t g = 0; g < 4; ++g) {
        EXPECT_FLOAT_EQ(runner.lse()[list * 4 + g],
                        runner.test().sinks()[list % 2 * 4 + g]);
        EXPECT_EQ(runner.output()[(list * 4 + g) * 64 + 3].bits, 0);
      }
    }
    ExpectMatches(runner);
  }
}

TEST_F(DecodeAttentionTest, NoSinksAndFarSinksCostNothing) {
  for (const int32_t chunk_tiles : {0, 1}) {
    const DecodeOptions options{.num_ctas = 5, .chunk_tiles = chunk_tiles};
    AttentionShape shape = RaggedShape(64, 4);
    ExpectNoSinksChangeNoBit<DecodeRunner<simt::Half>>(shape, options, 24);
    shape = ShapeOf(64, 2, {300, 40}, {19});
    shape.with_sinks = true;
    DecodeRunner<simt::Half> runner(shape, 25);
    ExpectFarSinksCostNoPrecision(runner, options);
  }
}

TEST_F(DecodeAttentionTest, SchedulesDoNotMatter) {
  for (const int32_t chunk_tiles : {0, 1}) {
    DecodeRunner<simt::BFloat16> runner(
        ShapeOf(64, 4, {0, 300, 33, 0}, {19, 40}), 8);
    ExpectSchedulesDoNotMatter(
        [&](const simt::Schedule& schedule) {
          return runner.Run({.num_ctas = 3,
                             .chunk_tiles = chunk_tiles,
                             .schedule = schedule});
        },
        [&] { return runner.Bits(); });
  }
}

// One list as long as all others together, and more CTAs than tiles.
TEST_F(DecodeAttentionTest, OneHugeHeadIsSharedByAllCtas) {
  DecodeRunner<simt::BFloat16> runner(ShapeOf(64, 8, {10, 900, 3, 0}, {5, 17}),
                                      9);
  for (const int32_t num_ctas : {1, 2, 7, 40}) {
    SCOPED_TRACE(num_ctas);
    ExpectRunMatches(runner, {.num_ctas = num_ctas});
  }
  ExpectRunMatches(runner,
                   {.num_ctas = 3, .chunk_tiles = kInvariantChunkTiles});
}

// The merge has one block for a list then.
TEST_F(DecodeAttentionTest, MatchesFloat64WithOverAThousandLists) {
  AttentionShape shape = RaggedShape(64, 2);
  shape.region_lengths.assign(2 * 513, 3);
  shape.tail_lengths.assign(513, 2);
  // Some that are cut, in all modes.
  shape.region_lengths[6] = 900;
  shape.region_lengths[1025] = 300;
  shape.with_sinks = true;
  DecodeRunner<simt::BFloat16> runner(shape, 20);
  for (const int32_t chunk_tiles : {0, 1}) {
    ExpectRunMatches(runner, {.num_ctas = 50, .chunk_tiles = chunk_tiles});
  }
}

TEST_F(DecodeAttentionTest, InChunksTheBatchDoesNotMatter) {
  DecodeRunner<simt::BFloat16> runner(
      ShapeOf(64, 4, {300, 7, 140, 64, 0, 200}, {19, 80, 3}), 10);
  ExpectRunMatches(runner, {.num_ctas = 3, .chunk_tiles = 2});
  const auto expected = runner.Bits();
  for (const int32_t num_ctas : {1, 5, 50}) {
    SCOPED_TRACE(num_ctas);
    ASSERT_EQ(runner.Run({.num_ctas = num_ctas, .chunk_tiles = 2}), "");
    EXPECT_EQ(runner.Bits(), expected);
  }
  // Alone, each sequence has the bits it had among others.
  for (int32_t s = 0; s < 3; ++s) {
    SCOPED_TRACE(s);
    ASSERT_EQ(runner.Run({.num_ctas = 2,
                          .chunk_tiles = 2,
                          .first_sequence = s,
                          .num_sequences = 1}),
              "");
    const auto alone = runner.Bits(s, 1);
    EXPECT_EQ(alone, runner.Slice(expected, s));
  }
}

// Lists of a group of parts, of one part more, and of several groups, in chunks
// of a tile and in shares of CTAs. Alone they have the bits that they had among
// others.
TEST_F(DecodeAttentionTest, ListsOfManyPartsAreMergedInGroups) {
  constexpr int32_t kGroup = kMergeParts * kDecodeTileRanks;
  DecodeRunner<simt::BFloat16> runner(
      ShapeOf(64, 2, {kGroup - 20, 3, 70, kGroup + 1, 2 * kGroup + 9, 0},
              {0, 3, 16}),
      23);
  ExpectRunMatches(runner, {.num_ctas = 700});
  ExpectRunMatches(runner, {.num_ctas = 9, .chunk_tiles = 1});
  const auto expected = runner.Bits();
  for (int32_t s = 0; s < 3; ++s) {
    SCOPED_TRACE(s);
    ASSERT_EQ(runner.Run({.num_ctas = 4,
                          .chunk_tiles = 1,
                          .first_sequence = s,
                          .num_sequences = 1}),
              "");
    EXPECT_EQ(runner.Bits(s, 1), runner.Slice(expected, s));
  }
}

template <typename T>
void CheckLiveLogits() {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t group_size : {3, 16}) {
      SCOPED_TRACE(testing::Message() << head_dim << " " << group_size);
      DecodeRunner<T> runner(
          ShapeOf(head_dim, group_size, {20, 70, 0, 0}, {19, 0}), 11);
      for (const int32_t chunk_tiles : {0, 1, kInvariantChunkTiles}) {
        SCOPED_TRACE(chunk_tiles);
        ASSERT_EQ(runner.Run({.num_ctas = 2,
                              .chunk_tiles = chunk_tiles,
                              .with_logits = true}),
                  "");
        runner.CheckLogits();
      }
    }
  }
}

TEST_F(DecodeAttentionTest, WritesLogitsOfLiveRanksOnly) {
  CheckLiveLogits<simt::BFloat16>();
  CheckLiveLogits<simt::Half>();
}

// Of every tile something is written, but in stream-K without logits.
TEST_F(DecodeAttentionTest, WritesNothingOfMoreTilesThanThereIsRoomFor) {
  DecodeRunner<simt::BFloat16> runner(RaggedShape(64, 4), 21);
  for (const int32_t chunk_tiles : {0, 1}) {
    for (const bool with_logits : {false, true}) {
      SCOPED_TRACE(testing::Message() << chunk_tiles << " " << with_logits);
      DecodeOptions options{.num_ctas = 3,
                            .chunk_tiles = chunk_tiles,
                            .with_logits = with_logits,
                            .lacking_tiles = 1};
      ASSERT_EQ(runner.Run(options), "");
      const bool needs_room = chunk_tiles > 0 || with_logits;
      EXPECT_EQ(runner.WroteNothing(), needs_room);
      EXPECT_EQ(runner.error_word(),
                needs_room ? uint32_t{kTilesOutOfRoom} : 0u);
      options.lacking_tiles = 0;
      ExpectRunMatches(runner, options);
      EXPECT_EQ(runner.error_word(), 0);
    }
  }
}

TEST_F(DecodeAttentionTest, NanInALiveRowReachesItsListOnly) {
  DecodeRunner<simt::BFloat16> runner(ShapeOf(64, 2, {20, 170, 0, 30}, {19, 3}),
                                      12);
  runner.test().SetValue(runner.test().slots(1)[100], false, 3, std::nanf(""));
  ASSERT_EQ(runner.Run({.num_ctas = 3}), "");
  for (int32_t row = 0; row < 8; ++row) {
    EXPECT_EQ(std::isnan(runner.lse()[row]), row / 2 == 1) << row;
    EXPECT_EQ(std::isnan(simt::ToFloat(runner.output()[row * 64])),
              row / 2 == 1)
        << row;
  }
}

// More lists than the planning block has threads.
TEST_F(DecodeAttentionTest, DevicePlansAsTheHostDoes) {
  Rng rng(15);
  constexpr int32_t kSequences = 700;
  SharedVector<int32_t> regions;
  SharedVector<int32_t> tails;
  SharedVector<int32_t> slots;
  for (int32_t s = 0; s < kSequences; ++s) {
    slots.push_back(s);
    tails.push_back(RandomInt(rng, 0, 3) == 0 ? 0 : RandomInt(rng, 0, 300));
    for (int32_t head = 0; head < 3; ++head) {
      regions.push_back(RandomInt(rng, 0, 2) == 0 ? 0 : RandomInt(rng, 0, 900));
    }
  }
  Shuffle(&slots, rng);
  for (const int32_t kind : {0, 1, 2}) {
    const bool with_regions = kind > 0;
    DecodePlanParams params;
    params.lists.num_sequences = kSequences;
    params.lists.num_heads = 3;
    params.lists.sequence_slots = slots.data();
    if (with_regions) params.lists.region_lengths = regions.data();
    params.lists.window = kind == 1 ? 0 : 100;
    params.lists.tail_lengths = tails.data();
    params.num_heads = MakeDivider(3);
    SharedVector<int32_t> offsets(kSequences * 3 + 1, -1);
    params.tile_offsets = offsets.data();
    ASSERT_EQ(RunKernel({.order = Order::kRandom, .seed = 1},
                        &DeviceRuntime::PlanDecode, params)
                  .error,
              "");
    int32_t expected = 0;
    for (int32_t list = 0; list < kSequences * 3; ++list) {
      ASSERT_EQ(offsets[list], expected) << list;
      const int32_t slot = slots[list / 3];
      expected +=
          CountDecodeTiles(with_regions ? regions[slot * 3 + list % 3] : 0,
                           tails[slot], 16, params.lists.window);
    }
    EXPECT_EQ(offsets.back(), expected);
  }
}

// Rows are read without two of them in one bank.
TEST_F(DecodeAttentionTest, FragmentsHaveNoBankConflicts) {
  for (const int32_t head_dim : {64, 128, 256}) {
    DecodeRunner<simt::BFloat16> runner(ShapeOf(head_dim, 4, {}, {64}), 13);
    ASSERT_EQ(runner.Run({.num_ctas = 1}), "");
    EXPECT_EQ(runner.bank_conflicts(), 0) << head_dim;
  }
}

}  // namespace
}  // namespace blockmgr
