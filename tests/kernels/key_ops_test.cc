#include "kernels/cpu/key_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
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
        num_listed(RandomInt(rng, num_rows, kTileRows)),
        rows(RandomFloats(rng, kTileRows * dim)),
        x(RandomFloats(rng, dim)) {
    for (float& value : rows) value = Stored(value, dtype);
    std::ranges::transform(rows, std::back_inserter(halves),
                           dtype == DType::kBFloat16 ? ToBFloat16 : ToFloat16);
    tile.head_dim = static_cast<int32_t>(dim);
    tile.dtype = dtype;
    for (int64_t r = 0; r < kTileRows; ++r) {
      tile.keys[r] = dtype == DType::kFloat32
                         ? reinterpret_cast<const std::byte*>(&rows[r * dim])
                         : reinterpret_cast<const std::byte*>(&halves[r * dim]);
    }
  }

  RowList List() const {
    return {.rows = tile.keys.data(),
            .num_rows = num_rows,
            .num_listed = num_listed,
            .head_dim = tile.head_dim,
            .dtype = tile.dtype};
  }
  double At(int64_t row, int64_t i) const { return rows[row * head_dim + i]; }

  int64_t head_dim;
  int32_t num_rows;
  int32_t num_listed;
  std::vector<float> rows;
  std::vector<uint16_t> halves;
  std::vector<float> x;
  KvTile tile;
};

// Subnormals, infinities and NaN too. One row's sum is the row.
TEST_P(KeyOpsTest, EveryFloat16IsReadAsItsValue) {
  for (const int32_t head_dim : {8, 128}) {
    for (int32_t first = 0; first < 1 << 16; first += head_dim) {
      std::vector<uint16_t> row(head_dim);
      std::iota(row.begin(), row.end(), static_cast<uint16_t>(first));
      const std::vector<const std::byte*> rows(
          kRowGroup, reinterpret_cast<const std::byte*>(row.data()));
      std::vector<float> sum(head_dim);
      SumRows({.rows = rows.data(),
               .num_rows = 1,
               .num_listed = 1,
               .head_dim = head_dim,
               .dtype = DType::kFloat16},
              sum.data());
      for (int32_t i = 0; i < head_dim; ++i) {
        const float value = FromFloat16(row[i]);
        ASSERT_TRUE(sum[i] == value ||
                    (std::isnan(sum[i]) && std::isnan(value)))
            << row[i] << ": " << sum[i];
      }
    }
  }
}

TEST_P(KeyOpsTest, NumbersOfRowsMatchFloat64) {
  for (const DType dtype : kEveryDType) {
    for (const int64_t head_dim : {8, 16, 24, 64, 80, 128, 256}) {
      SCOPED_TRACE(head_dim);
      Rng rng(head_dim);
      const KeyCase test(dtype, head_dim, rng);
      std::vector<float> squares(kTileRows);
      std::vector<float> of_tile(kTileRows);
      std::vector<float> dots(kTileRows);
      std::vector<float> distances(kTileRows);
      SquaredNorms(test.List(), squares.data());
      SquaredNorms(test.tile, test.num_rows, of_tile.data());
      DotRows(test.List(), test.x.data(), dots.data());
      SquaredDistances(test.List(), test.x.data(), distances.data());
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
        }
        EXPECT_NEAR(squares[r], square, 1e-6 * square);
        EXPECT_EQ(of_tile[r], squares[r]);
        EXPECT_NEAR(dots[r], dot, 2e-5);
        EXPECT_NEAR(distances[r], distance, 1e-6 * distance);
      }
    }
  }
}

// A floor above some lengths and below others, and one of none.
TEST_P(KeyOpsTest, SumsOfRowsMatchFloat64) {
  for (const DType dtype : kEveryDType) {
    for (const int64_t head_dim : {8, 16, 24, 64, 80, 96, 128, 160, 256}) {
      SCOPED_TRACE(head_dim);
      Rng rng(head_dim);
      const KeyCase test(dtype, head_dim, rng);
      for (const double floor :
           {1e-12, std::sqrt(static_cast<double>(head_dim) / 3.0)}) {
        std::vector<float> norms(kTileRows);
        std::vector<float> sum(head_dim);
        std::vector<float> plain(head_dim);
        SumNormalizedRows(test.List(), static_cast<float>(floor), norms.data(),
                          sum.data());
        SumRows(test.List(), plain.data());
        std::vector<double> expected(head_dim);
        std::vector<double> expected_plain(head_dim);
        for (int32_t r = 0; r < test.num_rows; ++r) {
          double square = 0.0;
          for (int64_t i = 0; i < head_dim; ++i) {
            square += test.At(r, i) * test.At(r, i);
          }
          const double norm = std::sqrt(square);
          EXPECT_NEAR(norms[r], norm, 1e-6 * norm);
          for (int64_t i = 0; i < head_dim; ++i) {
            expected[i] += test.At(r, i) / std::max(norm, floor);
            expected_plain[i] += test.At(r, i);
          }
        }
        for (int64_t i = 0; i < head_dim; ++i) {
          EXPECT_NEAR(sum[i], expected[i], 5e-6);
          EXPECT_NEAR(plain[i], expected_plain[i], 2e-5);
        }
      }
    }
  }
}

// Not on the rows around it, nor on its place among them.
TEST_P(KeyOpsTest, ARowsNumbersDependOnTheRowAlone) {
  for (const DType dtype : kEveryDType) {
    Rng rng(3);
    KeyCase test(dtype, 128, rng);
    test.num_rows = kTileRows;
    test.num_listed = kTileRows;
    std::vector<float> dots(kTileRows);
    std::vector<float> norms(kTileRows);
    std::vector<float> sum(128);
    DotRows(test.List(), test.x.data(), dots.data());
    SumNormalizedRows(test.List(), 1.0f, norms.data(), sum.data());
    for (int32_t r = 0; r + kRowGroup <= kTileRows; ++r) {
      RowList one = test.List();
      one.rows += r;
      one.num_rows = 1;
      one.num_listed = 1;
      std::vector<float> dot(kRowGroup);
      std::vector<float> norm(kRowGroup);
      DotRows(one, test.x.data(), dot.data());
      SumNormalizedRows(one, 1.0f, norm.data(), sum.data());
      EXPECT_EQ(dot[0], dots[r]);
      EXPECT_EQ(norm[0], norms[r]);
    }
  }
}

TEST_P(KeyOpsTest, NaNStaysInItsRowAndColumn) {
  Rng rng(2);
  KeyCase test(DType::kFloat32, 24, rng);
  test.num_rows = kTileRows;
  test.num_listed = kTileRows;
  test.rows[5 * 24 + 9] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> squares(kTileRows);
  std::vector<float> norms(kTileRows);
  std::vector<float> sum(24);
  std::vector<float> normalized(24);
  SquaredNorms(test.List(), squares.data());
  SumRows(test.List(), sum.data());
  SumNormalizedRows(test.List(), 1.0f, norms.data(), normalized.data());
  for (int32_t r = 0; r < kTileRows; ++r) {
    EXPECT_EQ(std::isnan(squares[r]), r == 5);
    EXPECT_EQ(std::isnan(norms[r]), r == 5);
  }
  for (int32_t i = 0; i < 24; ++i) {
    EXPECT_EQ(std::isnan(sum[i]), i == 9);
    // Its length is in all of its elements.
    EXPECT_TRUE(std::isnan(normalized[i]));
  }
}

BM_FOR_EVERY_TARGET(KeyOpsTest);

}  // namespace
}  // namespace blockmgr
