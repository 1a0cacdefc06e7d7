#include "kernels/cpu/packed_ops.h"

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

// A full tile of rows and some vectors to multiply it with.
struct PackedCase {
  PackedCase(DType dtype, int64_t dim, int64_t num_vectors, Rng& rng)
      : head_dim(dim),
        rows(RandomFloats(rng, kTileRows * dim)),
        elements(RandomFloats(rng, num_vectors * dim)),
        packed(AllocatePacked(dim)) {
    for (float& x : rows) x = Stored(x, dtype);
    std::ranges::transform(rows, std::back_inserter(halves),
                           dtype == DType::kBFloat16 ? ToBFloat16 : ToFloat16);
    tile.head_dim = static_cast<int32_t>(dim);
    tile.dtype = dtype;
    for (int64_t r = 0; r < kTileRows; ++r) {
      tile.keys[r] = dtype == DType::kFloat32
                         ? reinterpret_cast<const std::byte*>(&rows[r * dim])
                         : reinterpret_cast<const std::byte*>(&halves[r * dim]);
    }
    for (int64_t v = 0; v < num_vectors; ++v) {
      vectors.push_back(&elements[v * dim]);
    }
  }

  double Dot(int64_t vector, int64_t row) const {
    double dot = 0.0;
    for (int64_t i = 0; i < head_dim; ++i) {
      dot += double{vectors[vector][i]} * double{rows[row * head_dim + i]};
    }
    return dot;
  }

  int64_t head_dim;
  std::vector<float> rows;
  std::vector<uint16_t> halves;
  std::vector<float> elements;
  std::vector<const float*> vectors;
  AlignedFloats packed;
  KvTile tile;
};

class PackedOpsTest : public EveryTargetTest {};

TEST_P(PackedOpsTest, DotPackedMatchesFloat64) {
  for (const DType dtype : kEveryDType) {
    for (const int64_t head_dim : {8, 16, 24, 64, 80, 128}) {
      for (const int64_t num_vectors : {1, 2, 3, 4, 5, 6, 7, 13, 32}) {
        SCOPED_TRACE(testing::Message()
                     << head_dim << " elements, " << num_vectors << " vectors");
        Rng rng(head_dim * 100 + num_vectors);
        const PackedCase test(dtype, head_dim, num_vectors, rng);
        const int32_t num_rows = RandomInt(rng, 1, kTileRows);
        std::vector<float> out(num_vectors * kTileRows);
        PackRows(test.tile, num_rows, test.packed.get());
        DotPacked(test.packed.get(), head_dim, num_rows, 0.25f, test.vectors,
                  out.data(), kTileRows);
        for (int64_t v = 0; v < num_vectors; ++v) {
          for (int64_t r = 0; r < num_rows; ++r) {
            ASSERT_NEAR(out[v * kTileRows + r], 0.25 * test.Dot(v, r), 1e-5);
          }
        }
      }
    }
  }
}

TEST_P(PackedOpsTest, BitsDoNotDependOnCompany) {
  Rng rng(1);
  constexpr int64_t kHeadDim = 40;
  constexpr int64_t kVectors = 17;
  const PackedCase test(DType::kBFloat16, kHeadDim, kVectors, rng);
  std::vector<float> all(kVectors * kTileRows);
  PackRows(test.tile, kTileRows, test.packed.get());
  DotPacked(test.packed.get(), kHeadDim, kTileRows, 0.3f, test.vectors,
            all.data(), kTileRows);
  for (int64_t r = 0; r < kTileRows; ++r) {
    // One row alone, in the first place of a tile.
    KvTile one = test.tile;
    one.keys.fill(test.tile.keys[r]);
    PackRows(one, 1, test.packed.get());
    for (int64_t v = 0; v < kVectors; ++v) {
      std::vector<float> out(kTileRows);
      DotPacked(test.packed.get(), kHeadDim, 1, 0.3f, {&test.vectors[v], 1},
                out.data(), kTileRows);
      ASSERT_EQ(out[0], all[v * kTileRows + r]);
    }
  }
}

TEST_P(PackedOpsTest, AddAbsDotsMatchesFloat64) {
  for (const int64_t num_vectors : {1, 6, 11, 60}) {
    SCOPED_TRACE(num_vectors);
    Rng rng(num_vectors);
    const PackedCase test(DType::kFloat32, 36, num_vectors, rng);
    const int32_t num_rows = RandomInt(rng, 1, kTileRows);
    std::vector<float> sums(kTileRows, 2.0f);
    PackRows(test.tile, num_rows, test.packed.get());
    AddAbsDots(test.packed.get(), test.head_dim, num_rows, test.vectors,
               sums.data());
    for (int32_t r = 0; r < num_rows; ++r) {
      double expected = 2.0;
      for (int64_t v = 0; v < num_vectors; ++v) {
        expected += std::abs(test.Dot(v, r));
      }
      EXPECT_NEAR(sums[r], expected, 1e-6 * expected);
    }
  }
}

TEST_P(PackedOpsTest, QuadraticFormsMatchFloat64) {
  for (const int64_t head_dim : {8, 20, 64, 128}) {
    SCOPED_TRACE(head_dim);
    Rng rng(head_dim);
    const PackedCase test(DType::kFloat32, head_dim, head_dim, rng);
    const int32_t num_rows = RandomInt(rng, 1, kTileRows);
    std::vector<float> forms(kTileRows);
    PackRows(test.tile, num_rows, test.packed.get());
    QuadraticForms(test.packed.get(), num_rows, test.vectors, forms.data());
    for (int32_t r = 0; r < num_rows; ++r) {
      double expected = 0.0;
      double size = 0.0;
      for (int64_t i = 0; i < head_dim; ++i) {
        const double term = test.rows[r * head_dim + i] * test.Dot(i, r);
        expected += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(forms[r], expected, 2e-6 * size);
    }
  }
}

TEST_P(PackedOpsTest, NaNStaysInItsRow) {
  Rng rng(5);
  PackedCase test(DType::kFloat32, 24, 3, rng);
  test.rows[7 * 24 + 23] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(size_t{3} * kTileRows);
  PackRows(test.tile, kTileRows, test.packed.get());
  DotPacked(test.packed.get(), 24, kTileRows, 1.0f, test.vectors, out.data(),
            kTileRows);
  for (int64_t i = 0; i < std::ssize(out); ++i) {
    EXPECT_EQ(std::isnan(out[i]), i % kTileRows == 7);
  }
}

BM_FOR_EVERY_TARGET(PackedOpsTest);

}  // namespace
}  // namespace blockmgr
