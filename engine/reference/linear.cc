#include "engine/reference/linear.h"

#include <cstddef>

#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/reference/linear.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, kLinearMultiple>;

// kVectors vectors of columns from `column` on, all rows: the strip of weights
// stays in the cache while the rows pass.
template <int kVectors>
HWY_INLINE void ColumnStrip(const float* HWY_RESTRICT input,
                            const float* HWY_RESTRICT weights, size_t num_rows,
                            size_t in, size_t out, size_t column,
                            float* HWY_RESTRICT output) {
  static_assert(kVectors == 1 || kVectors == 4);
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < num_rows; ++row) {
    const float* weight = weights + column;
    auto sum0 = hn::Zero(d);
    auto sum1 = hn::Zero(d);
    auto sum2 = hn::Zero(d);
    auto sum3 = hn::Zero(d);
    for (size_t i = 0; i < in; ++i, weight += out) {
      const auto x = hn::Set(d, input[row * in + i]);
      sum0 = hn::MulAdd(x, hn::LoadU(d, weight), sum0);
      if constexpr (kVectors == 4) {
        sum1 = hn::MulAdd(x, hn::LoadU(d, weight + lanes), sum1);
        sum2 = hn::MulAdd(x, hn::LoadU(d, weight + 2 * lanes), sum2);
        sum3 = hn::MulAdd(x, hn::LoadU(d, weight + 3 * lanes), sum3);
      }
    }
    float* to = output + row * out + column;
    hn::StoreU(sum0, d, to);
    if constexpr (kVectors == 4) {
      hn::StoreU(sum1, d, to + lanes);
      hn::StoreU(sum2, d, to + 2 * lanes);
      hn::StoreU(sum3, d, to + 3 * lanes);
    }
  }
}

void LinearRows(const float* HWY_RESTRICT input,
                const float* HWY_RESTRICT weights, size_t num_rows, size_t in,
                size_t out, float* HWY_RESTRICT output) {
  const size_t lanes = hn::Lanes(Tag());
  size_t column = 0;
  for (; column + 4 * lanes <= out; column += 4 * lanes) {
    ColumnStrip<4>(input, weights, num_rows, in, out, column, output);
  }
  for (; column < out; column += lanes) {
    ColumnStrip<1>(input, weights, num_rows, in, out, column, output);
  }
}

}  // namespace
}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
HWY_EXPORT(LinearRows);

void Linear(std::span<const float> input, std::span<const float> weights,
            int32_t in, int32_t out, std::span<float> output) {
  BM_CHECK(in > 0 && out > 0 && out % kLinearMultiple == 0);
  const auto in_size = static_cast<size_t>(in);
  const auto out_size = static_cast<size_t>(out);
  const size_t num_rows = output.size() / out_size;
  BM_CHECK(input.size() == num_rows * in_size);
  BM_CHECK(weights.size() == in_size * out_size);
  HWY_DYNAMIC_DISPATCH(LinearRows)
  (input.data(), weights.data(), num_rows, in_size, out_size, output.data());
}

}  // namespace blockmgr
#endif  // HWY_ONCE
