// The vector helpers that the attention tests do not pin down by themselves.

#include "kernels/cpu/tile_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

TEST(AddSoftmaxTest, AddsTheFirstSharesForEveryLength) {
  Rng rng(1);
  for (int32_t n = 1; n <= 150; ++n) {
    SCOPED_TRACE(n);
    std::vector<float> logits = RandomFloats(rng, n);
    for (float& x : logits) x *= 10.0f;
    const double max = *std::ranges::max_element(logits);
    double total = 0.0;
    for (const float x : logits) total += std::exp(x - max);
    const int32_t num_sums = RandomInt(rng, 0, n);
    std::vector<float> sums(num_sums, 1.0f);
    std::vector<float> scratch = logits;
    // What follows the logits must not count, whatever it is.
    scratch.resize(int64_t{CeilDiv(n, kTileRows)} * kTileRows,
                   std::numeric_limits<float>::infinity());
    AddSoftmax(scratch.data(), n, sums);
    for (int32_t i = 0; i < num_sums; ++i) {
      EXPECT_NEAR(sums[i] - 1.0, std::exp(logits[i] - max) / total, 3e-7);
    }
  }
}

class TileOpsTest : public EveryTargetTest {};

TEST_P(TileOpsTest, AttendTileMatchesFloat64) {
  Rng rng(2);
  for (const int64_t head_dim : {4, 8, 16, 20, 64, 80, 128}) {
    SCOPED_TRACE(head_dim);
    const std::vector<float> rows =
        RandomFloats(rng, int64_t{2} * kTileRows * head_dim);
    KvTile tile;
    tile.head_dim = static_cast<int32_t>(head_dim);
    tile.kv_stride = kTileRows * head_dim * 4;
    for (int32_t r = 0; r < kTileRows; ++r) {
      tile.keys[r] = reinterpret_cast<const std::byte*>(&rows[r * head_dim]);
    }
    const float* values = &rows[kTileRows * head_dim];
    const int32_t num_rows = RandomInt(rng, 1, kTileRows);
    constexpr int32_t kQueries = 3;
    const std::vector<float> queries = RandomFloats(rng, kQueries * head_dim);
    std::vector<SoftmaxState> states(kQueries);
    std::vector<float> output(kQueries * head_dim);
    AttendTile(tile, num_rows, 0.2f,
               {.queries = queries.data(),
                .output = output.data(),
                .group_size = kQueries,
                .states = states});
    for (int32_t q = 0; q < kQueries; ++q) {
      std::vector<double> expected(head_dim);
      double sum = 0.0;
      for (int32_t r = 0; r < num_rows; ++r) {
        double logit = 0.0;
        for (int64_t i = 0; i < head_dim; ++i) {
          logit += double{queries[q * head_dim + i]} * rows[r * head_dim + i];
        }
        const double weight = std::exp(0.2f * logit);
        sum += weight;
        for (int64_t i = 0; i < head_dim; ++i) {
          expected[i] += weight * values[r * head_dim + i];
        }
      }
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_NEAR(output[q * head_dim + i] / states[q].sum, expected[i] / sum,
                    2e-6);
      }
    }
  }
}

// Tokens lie apart, rows are converted before: the bits are those of each query
// alone.
TEST_P(TileOpsTest, QueriesOfManyTokensGetTheBitsOfEachAlone) {
  Rng rng(3);
  for (const int64_t head_dim : {8, 64, 80}) {
    SCOPED_TRACE(head_dim);
    std::vector<uint16_t> rows(int64_t{2} * kTileRows * head_dim);
    EncodeBFloat16(RandomFloats(rng, std::ssize(rows)), rows);
    KvTile tile;
    tile.head_dim = static_cast<int32_t>(head_dim);
    tile.kv_stride = kTileRows * head_dim * 2;
    tile.dtype = DType::kBFloat16;
    for (int32_t r = 0; r < kTileRows; ++r) {
      tile.keys[r] = reinterpret_cast<const std::byte*>(&rows[r * head_dim]);
    }
    constexpr int64_t kTokens = 5;
    constexpr int64_t kGroup = 3;
    const int64_t stride = 7 * head_dim;
    const int32_t num_rows = RandomInt(rng, 1, kTileRows);
    const std::vector<float> queries = RandomFloats(rng, kTokens * stride);
    std::vector<SoftmaxState> states(kTokens * kGroup);
    std::vector<float> output(kTokens * stride);
    std::vector<float> floats(WideTileFloats(tile.head_dim));
    KvTile wide;
    WidenTile(tile, 0, num_rows, floats.data(), &wide);
    AttendTile(wide, num_rows, 0.2f,
               {.queries = queries.data(),
                .output = output.data(),
                .token_stride = stride,
                .group_size = kGroup,
                .states = states});
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t head = 0; head < kGroup; ++head) {
        SoftmaxState state;
        std::vector<float> alone(head_dim);
        const int64_t begin = token * stride + head * head_dim;
        AttendTile(tile, num_rows, 0.2f,
                   {.queries = &queries[begin],
                    .output = alone.data(),
                    .group_size = 1,
                    .states = {&state, 1}});
        EXPECT_EQ(alone, std::vector<float>(output.begin() + begin,
                                            output.begin() + begin + head_dim));
        EXPECT_EQ(state.sum, states[token * kGroup + head].sum);
        EXPECT_EQ(state.max, states[token * kGroup + head].max);
      }
    }
  }
}

TEST_P(TileOpsTest, EncodeBFloat16DoesWhatTheScalarConversionDoes) {
  // Low halves around the tie, both ways.
  for (const uint32_t low :
       {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    std::vector<float> in(1 << 16);
    for (uint32_t high = 0; high < in.size(); ++high) {
      in[high] = std::bit_cast<float>(high << 16 | low);
    }
    std::vector<uint16_t> out(in.size());
    EncodeBFloat16(in, out);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], ToBFloat16(in[i])) << std::bit_cast<uint32_t>(in[i]);
    }
  }
}

// Every float16, its neighbours' ties and all NaN: each high part with low
// parts around a tie.
TEST_P(TileOpsTest, EncodeFloat16DoesWhatTheScalarConversionDoes) {
  std::vector<float> in;
  for (uint32_t high = 0; high < 1u << 19; ++high) {
    const uint32_t low = (high * 0x9E3779B1u) >> 30;
    for (const uint32_t bits : {0x0000u, 0x0FFFu + low, 0x1FFFu}) {
      in.push_back(std::bit_cast<float>(high << 13 | bits));
    }
  }
  in.resize(in.size() / 4 * 4);
  std::vector<uint16_t> out(in.size());
  EncodeFloat16(in, out);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], ToFloat16(in[i]))
        << std::hex << std::bit_cast<uint32_t>(in[i]);
  }
}

TEST_P(TileOpsTest, NaNAmongTheLogitsMakesEveryShareNaN) {
  for (int32_t n = 1; n <= 70; n += 3) {
    for (const int32_t at : {0, n / 2, n - 1}) {
      std::vector<float> logits(int64_t{CeilDiv(n, kTileRows)} * kTileRows,
                                1.0f);
      logits[at] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> sums(n);
      AddSoftmax(logits.data(), n, sums);
      EXPECT_TRUE(
          std::ranges::all_of(sums, [](float x) { return std::isnan(x); }))
          << n << " logits, NaN at " << at;
    }
  }
}

BM_FOR_EVERY_TARGET(TileOpsTest);

}  // namespace
}  // namespace blockmgr
