#include "kernels/cuda/host/split_covariance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

constexpr int32_t kSplitDim = 8;

struct Split {
  Split(const std::vector<float>& covariance, DType dtype)
      : half(dtype == DType::kFloat16), parts(2 * covariance.size()) {
    unit = SplitCovariance(covariance, kSplitDim, dtype, parts);
  }
  double Part(int64_t i, int64_t part, int64_t j) const {
    const uint16_t bits = parts[(i * 2 + part) * kSplitDim + j];
    return double{half ? FromFloat16(bits) : FromBFloat16(bits)};
  }
  double At(int64_t i, int64_t j) const {
    return (Part(i, 0, j) + Part(i, 1, j)) * double{unit};
  }

  bool half;
  std::vector<uint16_t> parts;
  float unit;
};

class SplitCovarianceTest : public testing::TestWithParam<DType> {};

TEST_P(SplitCovarianceTest, KeepsWhatItSays) {
  const bool half = GetParam() == DType::kFloat16;
  for (const float size : {1.0f, 3e-20f, 7e25f, 1e-38f, 3e38f}) {
    SCOPED_TRACE(size);
    Rng rng(5);
    std::vector<float> covariance = RandomFloats(rng, kSplitDim * kSplitDim);
    for (std::size_t i = 0; i < covariance.size(); ++i) {
      covariance[i] *= std::ldexp(0.1f, -static_cast<int32_t>(i) / 4) * size;
    }
    covariance[3] = 0.0f;
    const Split split(covariance, GetParam());
    float largest = 0.0f;
    for (const float x : covariance) largest = std::max(largest, std::abs(x));
    int32_t exponent = 0;
    EXPECT_EQ(std::frexp(split.unit, &exponent), 0.5f);
    for (int64_t i = 0; i < kSplitDim; ++i) {
      for (int64_t j = 0; j < kSplitDim; ++j) {
        const double x = double{covariance[i * kSplitDim + j]};
        const double bound =
            std::max({std::abs(x) * (half ? 0x1p-22 : 0x1p-16),
                      half ? double{largest} * 0x1p-38 : 0.0, 0x1p-120});
        EXPECT_NEAR(split.At(i, j), x, bound) << i << " " << j;
        EXPECT_LE(std::abs(split.Part(i, 0, j)), 0x1p14);
      }
    }
  }
}

TEST_P(SplitCovarianceTest, ZerosStayZerosAndNanStaysInItsElement) {
  std::vector<float> covariance(kSplitDim * kSplitDim);
  const Split zeros(covariance, GetParam());
  EXPECT_GT(zeros.unit, 0.0f);
  covariance[5] = std::nanf("");
  covariance[9] = std::numeric_limits<float>::infinity();
  const Split split(covariance, GetParam());
  for (int64_t i = 0; i < kSplitDim; ++i) {
    for (int64_t j = 0; j < kSplitDim; ++j) {
      EXPECT_EQ(zeros.At(i, j), 0.0);
      EXPECT_EQ(std::isfinite(split.At(i, j)),
                i * kSplitDim + j != 5 && i * kSplitDim + j != 9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SplitCovarianceTest,
                         testing::Values(DType::kBFloat16, DType::kFloat16),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
