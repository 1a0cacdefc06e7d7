#include "kernels/cpu/key_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "tests/kernels/every_target.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

class KeyOpsTest : public EveryTargetTest {};

// A tile of random rows of which the first num_rows are live.
struct KeyCase {
  KeyCase(DType dtype, int64_t dim, Rng& rng)
      : head_dim(dim),
        num_rows(RandomInt(rng, 1, kTileRows)),
        rows(RandomFloats(rng, kTileRows * dim)),
        x(RandomFloats(rng, dim)),
        weights(RandomFloats(rng, kTileRows)) {
    for (float& value : rows) value = Stored(value, dtype);
    std::ranges::transform(rows, std::back_inserter(halves), ToBFloat16);
    tile.head_dim = static_cast<int32_t>(dim);
    tile.dtype = dtype;
    for (int64_t r = 0; r < kTileRows; ++r) {
      tile.keys[r] = dtype == DType::kFloat32
                         ? reinterpret_cast<const std::byte*>(&rows[r * dim])
                         : reinterpret_cast<const std::byte*>(&halves[r * dim]);
    }
  }

  double At(int64_t row, int64_t i) const { return rows[row * head_dim + i]; }

  int64_t head_dim;
  int32_t num_rows;
  std::vector<float> rows;
  std::vector<uint16_t> halves;
  std::vector<float> x;
  std::vector<float> weights;
  KvTile tile;
};

TEST_P(KeyOpsTest, MatchFloat64) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t head_dim : {8, 16, 24, 64, 80, 128, 256}) {
      SCOPED_TRACE(head_dim);
      Rng rng(head_dim);
      const KeyCase test(dtype, head_dim, rng);
      std::vector<float> squares(kTileRows);
      std::vector<float> dots(kTileRows);
      std::vector<float> distances(kTileRows);
      std::vector<float> sum(head_dim);
      SquaredNorms(test.tile, test.num_rows, squares.data());
      DotRows(test.tile, test.num_rows, test.x.data(), dots.data());
      SquaredDistances(test.tile, test.num_rows, test.x.data(),
                       distances.data());
      WeightedRowSum(test.tile, test.num_rows, test.weights.data(), sum.data());
      std::vector<double> expected_sum(head_dim);
      for (int32_t r = 0; r < test.num_rows; ++r) {
        double square = 0.0;
        double dot = 0.0;
        double distance = 0.0;
        for (int64_t i = 0; i < head_dim; ++i) {
          const double k = test.At(r, i);
          const double a = test.x[i];
          square += k * k;
          dot += k * a;
          distance += (k - a) * (k - a);
          expected_sum[i] += test.weights[r] * k;
        }
        EXPECT_NEAR(squares[r], square, 1e-6 * square);
        EXPECT_NEAR(dots[r], dot, 2e-5);
        EXPECT_NEAR(distances[r], distance, 1e-6 * distance);
      }
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_NEAR(sum[i], expected_sum[i], 2e-5);
      }
    }
  }
}

TEST_P(KeyOpsTest, NaNStaysInItsRowAndColumn) {
  Rng rng(2);
  KeyCase test(DType::kFloat32, 24, rng);
  test.rows[5 * 24 + 9] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> squares(kTileRows);
  std::vector<float> sum(24);
  SquaredNorms(test.tile, kTileRows, squares.data());
  WeightedRowSum(test.tile, kTileRows, test.weights.data(), sum.data());
  for (int32_t r = 0; r < kTileRows; ++r) {
    EXPECT_EQ(std::isnan(squares[r]), r == 5);
  }
  for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(sum[i]), i == 9);
}

BM_FOR_EVERY_TARGET(KeyOpsTest);

}  // namespace
}  // namespace blockmgr
