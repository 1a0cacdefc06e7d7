#include "kernels/cuda/host/split_covariance.h"

#include <algorithm>
#include <cmath>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// The largest element's first part is below 2^kTopExponent: far from fp16's
// largest number, 2^16, and as far from its subnormals as that allows.
constexpr int32_t kTopExponent = 14;
// Units stay normal numbers, also times what logits are multiplied with.
constexpr int32_t kMinUnitExponent = -96;

}  // namespace

float SplitCovariance(std::span<const float> covariance, int32_t head_dim,
                      DType dtype, std::span<uint16_t> parts) {
  BM_CHECK(std::ssize(covariance) == int64_t{head_dim} * head_dim);
  BM_CHECK(parts.size() == 2 * covariance.size());
  BM_CHECK(dtype != DType::kFloat32);
  float largest = 0.0f;
  for (const float x : covariance) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  int32_t exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  const float unit =
      std::ldexp(1.0f, std::max(exponent - kTopExponent, kMinUnitExponent));
  const bool half = dtype == DType::kFloat16;
  for (int64_t i = 0; i < head_dim; ++i) {
    const auto row = covariance.subspan(i * head_dim, head_dim);
    const auto first = parts.subspan(2 * i * head_dim, head_dim);
    const auto second = parts.subspan((2 * i + 1) * head_dim, head_dim);
    for (int64_t j = 0; j < head_dim; ++j) {
      // Exact, but for what is too small to count.
      const float x = row[j] / unit;
      first[j] = half ? ToFloat16(x) : ToBFloat16(x);
      const float rest =
          x - (half ? FromFloat16(first[j]) : FromBFloat16(first[j]));
      second[j] = half ? ToFloat16(rest) : ToBFloat16(rest);
    }
  }
  return unit;
}

}  // namespace blockmgr
