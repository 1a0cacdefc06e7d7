// Pooling, and h2o's sums: against the CPU and float64.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/decode_runner.h"
#include "tests/kernels/cuda/scores/decode_sum_runner.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/pool_runner.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

std::vector<ScorerSpec> AllPoolings(int32_t window, int32_t kernel) {
  std::vector<ScorerSpec> all;
  for (const PoolKind pool : {PoolKind::kMax, PoolKind::kAvg}) {
    for (const PoolOrder order : {PoolOrder::kAdaKv, PoolOrder::kKvPress}) {
      for (const GroupReduce group : {GroupReduce::kMean, GroupReduce::kMax}) {
        all.push_back({.window = window,
                       .pool = pool,
                       .kernel = kernel,
                       .order = order,
                       .group = group});
      }
    }
  }
  return all;
}

std::string Spelled(const ScorerSpec& scorer) {
  EvictionPolicy policy;
  policy.scorer = scorer;
  return FormatPolicy(policy);
}

class PooledScoresTest : public DeviceTest {};

// The same weights give the same bits as the reduction that the CPU uses.
TEST_F(PooledScoresTest, EqualTheReductionOfTheCpuBitForBit) {
  for (const int32_t kernel : {1, 7, 601}) {
    EntryCase<simt::BFloat16> test(
        {.group_size = 3, .sizes = {290, 5, 0, 40}, .window = 4}, 1);
    PoolRunner<simt::BFloat16> runner(&test);
    auto attention =
        Shared(RandomFloats(test.cache().rng(), test.num_entries() * 3));
    attention[17] = std::nanf("");
    attention[40] = -std::numeric_limits<float>::infinity();
    for (const ScorerSpec& scorer : AllPoolings(4, kernel)) {
      SCOPED_TRACE(Spelled(scorer));
      ASSERT_EQ(runner.Run(scorer, attention, {}), "");
      for (int32_t list = 0; list < test.num_lists(); ++list) {
        const int32_t num_past = test.CountPast(list);
        std::vector<float> rows;
        for (int32_t g = 0; g < 3; ++g) {
          const auto begin = attention.begin() + test.offset(list) * 3 +
                             int64_t{g} * test.size(list);
          rows.insert(rows.end(), begin, begin + num_past);
        }
        std::vector<float> expected(num_past);
        ReduceSnapKv(scorer, rows, 3, expected);
        expected.resize(test.size(list),
                        std::numeric_limits<float>::infinity());
        for (int32_t e = 0; e < test.size(list); ++e) {
          const float got = runner.scores()[test.offset(list) + e];
          ASSERT_TRUE(simt::FloatBits(got) == simt::FloatBits(expected[e]) ||
                      (std::isnan(got) && std::isnan(expected[e])))
              << list << " " << e << ": " << got << " " << expected[e];
        }
      }
    }
  }
}

void CheckDecodeSums(bool with_sinks) {
  AttentionShape shape{.num_heads = 2,
                       .group_size = 3,
                       .head_dim = 64,
                       .page_size = 32,
                       .region_lengths = {20, 70, 0, 100, 0, 0},
                       .tail_lengths = {19, 45, 0},
                       .with_sinks = with_sinks};
  DecodeRunner<simt::BFloat16> decode(shape, 4);
  ASSERT_EQ(decode.Run({.num_ctas = 3, .with_logits = true}), "");
  // A hole before each list must stay as it is.
  SharedVector<int64_t> offsets;
  SharedVector<float> sums;
  for (int32_t list = 0; list < 6; ++list) {
    sums.push_back(-7.0f);
    offsets.push_back(std::ssize(sums));
    for (std::size_t i = 0; i < decode.test().slots(list).size(); ++i) {
      sums.push_back(0.25f);
    }
  }
  offsets.push_back(std::ssize(sums));
  SharedVector<uint32_t> error = {0};
  const DecodeSumParams params = {.lists = decode.test().Lists(),
                                  .page_shift = 5,
                                  .num_heads = MakeDivider(2),
                                  .tile_offsets = decode.tile_offsets().data(),
                                  .logits = decode.logits().data(),
                                  .lse = decode.lse().data(),
                                  .max_tiles = decode.tile_offsets().back(),
                                  .group_size = 3,
                                  .sum_offsets = offsets.data(),
                                  .sums = sums.data(),
                                  .num_sums = std::ssize(sums),
                                  .error = error.data()};
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::AddDecodeAttention, params).error,
            "");
  EXPECT_EQ(error[0], 0u);
  for (int32_t list = 0; list < 6; ++list) {
    EXPECT_EQ(sums[offsets[list] - 1], -7.0f);
    const std::vector<SlotIndex>& slots = decode.test().slots(list);
    const ListRows rows = decode.test().Rows(list);
    std::vector<double> expected(slots.size(), 0.25);
    for (int32_t g = 0; g < 3; ++g) {
      const simt::BFloat16* query = &decode.queries()[(list * 3 + g) * 64];
      const double lse =
          decode.test().Reference(rows, list, g, std::ssize(slots), query).lse;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        double dot = 0.0;
        for (int32_t k = 0; k < 64; ++k) {
          dot += double{simt::ToFloat(query[k])} *
                 double{decode.test().Value(slots[i], false, k)};
        }
        expected[i] += std::exp(dot * decode.test().scale() - lse);
      }
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ASSERT_NEAR(sums[offsets[list] + i], expected[i], 2e-5 * expected[i]);
    }
  }
}

// With sinks the entries share less than 1.
TEST_F(PooledScoresTest, DecodeSumsMatchFloat64) {
  CheckDecodeSums(false);
  CheckDecodeSums(true);
}

// More than a grid has room for in y, and hardly one with an entry.
TEST_F(PooledScoresTest, DecodeSumsOfVeryManyLists) {
  // Sanitizers take too long over so many blocks.
  std::vector<int32_t> tail_lengths(kBrief ? 820 : 8200, 0);
  tail_lengths[3] = 70;
  tail_lengths.back() = 5;
  DecodeSumRunner runner(8, tail_lengths);
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_TRUE(runner.AllSumsAre(1.0f));
  EXPECT_EQ(runner.error_word(), 0);
}

// As where a step on the device has appended a token that the host had not
// counted: in the last tile, and in one that there is no room for.
TEST_F(PooledScoresTest, DecodeSumsStayInTheirRoom) {
  DecodeSumRunner runner(2, {70, 64, 5});
  runner.SetTails({71, 64, 5});
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), kOffsetsOutOfLists);
  EXPECT_TRUE(runner.AllSumsAre(1.0f));
  runner.SetTails({70, 65, 5});
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), kTilesOutOfRoom);
  EXPECT_TRUE(runner.AllSumsAre(0.0f));
  runner.SetTails({70, 63, 5});
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), 0);
  EXPECT_FALSE(runner.AllSumsAre(1.0f));
  // The last two lists have 5 sums each: one list loses 2, the other all.
  runner.set_num_sums(2 * (70 + 64) + 3);
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), kOffsetsOutOfLists);
  EXPECT_EQ(runner.CountSums(0.0f), 2 + 2 + 5);
}

TEST_F(PooledScoresTest, DecodeSumsWithOffsetsOutsideOfThem) {
  DecodeSumRunner runner(1, {20, 30, 0, 40});
  // The third list has no entries, so its offset does not matter.
  runner.set_sum_offset(2, 1000);
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), 0u);
  EXPECT_TRUE(runner.AllSumsAre(1.0f));
  for (const int64_t offset :
       {int64_t{-1}, std::numeric_limits<int64_t>::min(), int64_t{91},
        std::numeric_limits<int64_t>::max()}) {
    SCOPED_TRACE(offset);
    runner.set_sum_offset(0, offset);
    ASSERT_EQ(runner.Run({}), "");
    EXPECT_EQ(runner.error_word(), uint32_t{kOffsetsOutOfLists});
    EXPECT_EQ(runner.CountSums(0.0f), 20);
    EXPECT_EQ(runner.CountSums(1.0f), 70);
  }
  // The first list then ends before it begins.
  runner.set_sum_offset(0, 1);
  runner.set_sum_offset(1, std::numeric_limits<int64_t>::min());
  ASSERT_EQ(runner.Run({}), "");
  EXPECT_EQ(runner.error_word(), uint32_t{kOffsetsOutOfLists});
  EXPECT_EQ(runner.CountSums(0.0f), 20 + 30);
}

TEST_F(PooledScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test(
      {.group_size = 3, .sizes = {290, 40}, .window = 4}, 6);
  PoolRunner<simt::BFloat16> runner(&test);
  const auto attention =
      Shared(RandomFloats(test.cache().rng(), test.num_entries() * 3));
  const ScorerSpec scorer{.window = 4, .order = PoolOrder::kKvPress};
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run(scorer, attention, {.schedule = schedule});
      },
      [&] { return runner.scores(); });
}

}  // namespace
}  // namespace blockmgr
