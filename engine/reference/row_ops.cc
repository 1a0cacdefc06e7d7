#include "engine/reference/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/reference/row_ops.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A step of a loop over elements: one, two or four vectors.
constexpr size_t kStep = 16;
using D = hn::CappedTag<float, kStep>;
using V = hn::Vec<D>;

// Calls step(i, num_elements) for the elements of each step. The last step may
// have fewer than kStep.
template <class Step>
HWY_INLINE void ForSteps(size_t size, const Step& step) {
  size_t i = 0;
  for (; i + kStep <= size; i += kStep) step(i, kStep);
  if (i < size) step(i, size - i);
}

// Computes output[i] = function(i's elements of a and b). The elements of an
// incomplete step are copied, so that they take the same instructions.
template <class Function>
HWY_INLINE void Apply(const float* a, const float* b, size_t size,
                      float* output, const Function& function) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  ForSteps(size, [&](size_t i, size_t count) HWY_ATTR {
    HWY_ALIGN float copies[3][kStep] = {};
    const bool complete = count == kStep;
    if (!complete) {
      std::copy_n(a + i, count, copies[0]);
      std::copy_n(b + i, count, copies[1]);
    }
    const float* from_a = complete ? a + i : copies[0];
    const float* from_b = complete ? b + i : copies[1];
    float* to = complete ? output + i : copies[2];
    for (size_t k = 0; k < kStep; k += lanes) {
      hn::StoreU(function(hn::LoadU(d, from_a + k), hn::LoadU(d, from_b + k)),
                 d, to + k);
    }
    if (!complete) std::copy_n(copies[2], count, output + i);
  });
}

// Returns the sum of squares. Partial sum j has the elements i with
// i % kStep == j; then halves are added to halves. So all machines that have
// fused multiply-adds agree.
HWY_INLINE float SumOfSquares(const float* row, size_t width) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float sums[kStep] = {};
  ForSteps(width, [&](size_t i, size_t count) HWY_ATTR {
    HWY_ALIGN float copies[kStep] = {};
    if (count < kStep) std::copy_n(row + i, count, copies);
    const float* from = count < kStep ? copies : row + i;
    for (size_t k = 0; k < kStep; k += lanes) {
      const V x = hn::LoadU(d, from + k);
      hn::Store(hn::MulAdd(x, x, hn::Load(d, sums + k)), d, sums + k);
    }
  });
  for (size_t half = kStep / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void NormalizeOn(const float* rows, size_t num_rows, const float* gains,
                 size_t width, float epsilon, float* normalized) {
  const D d;
  for (size_t row = 0; row < num_rows; ++row) {
    const float* x = rows + row * width;
    const float mean = SumOfSquares(x, width) / static_cast<float>(width);
    const V scale = hn::Set(d, 1.0f / std::sqrt(mean + epsilon));
    Apply(x, gains, width, normalized + row * width,
          [&](V value, V gain)
              HWY_ATTR { return hn::Mul(hn::Mul(value, scale), gain); });
  }
}

// Returns x / (1 + exp(-t)). Beyond 104, exp is infinite in fp32.
HWY_INLINE V TimesSigmoid(V x, V t) {
  const D d;
  const V exponent = hn::Min(hn::Neg(t), hn::Set(d, 104.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

void GateWithSiluOn(const float* up, size_t size, float* gate) {
  Apply(gate, up, size, gate, [](V x, V factor) HWY_ATTR {
    return hn::Mul(TimesSigmoid(x, x), factor);
  });
}

void GateWithGeluOn(const float* up, size_t size, float* gate) {
  const D d;
  // u = sqrt(2 / pi) (x + 0.044715 x^3)
  constexpr double kTwiceLinear = 2 * 0.79788456080286536;
  const V linear = hn::Set(d, static_cast<float>(kTwiceLinear));
  const V cubic = hn::Set(d, static_cast<float>(kTwiceLinear * 0.044715));
  Apply(gate, up, size, gate, [&](V x, V factor) HWY_ATTR {
    const V slope = hn::MulAdd(hn::Mul(x, x), cubic, linear);
    return hn::Mul(TimesSigmoid(x, hn::Mul(x, slope)), factor);
  });
}

// Products and sums are rounded one by one, as in plain code.
void RotateOn(const float* cosine, const float* sine, size_t num_heads,
              size_t half, float* head) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t h = 0; h < num_heads; ++h, head += 2 * half) {
    size_t i = 0;
    for (; i + lanes <= half; i += lanes) {
      const V c = hn::LoadU(d, cosine + i);
      const V s = hn::LoadU(d, sine + i);
      const V low = hn::LoadU(d, head + i);
      const V high = hn::LoadU(d, head + half + i);
      hn::StoreU(hn::Sub(hn::Mul(low, c), hn::Mul(high, s)), d, head + i);
      hn::StoreU(hn::Add(hn::Mul(high, c), hn::Mul(low, s)), d,
                 head + half + i);
    }
    for (; i < half; ++i) {
      const float low = head[i];
      const float high = head[half + i];
      head[i] = low * cosine[i] - high * sine[i];
      head[half + i] = high * cosine[i] + low * sine[i];
    }
  }
}

void AddOn(const float* rows, size_t size, float* sums) {
  Apply(sums, rows, size, sums,
        [](V sum, V row) HWY_ATTR { return hn::Add(sum, row); });
}

}  // namespace
}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
HWY_EXPORT(NormalizeOn);
HWY_EXPORT(GateWithSiluOn);
HWY_EXPORT(GateWithGeluOn);
HWY_EXPORT(RotateOn);
HWY_EXPORT(AddOn);

void NormalizeRows(std::span<const float> rows, std::span<const float> gains,
                   float epsilon, std::span<float> normalized) {
  BM_CHECK(!gains.empty() && rows.size() % gains.size() == 0);
  BM_CHECK(normalized.size() == rows.size());
  HWY_DYNAMIC_DISPATCH(NormalizeOn)
  (rows.data(), rows.size() / gains.size(), gains.data(), gains.size(), epsilon,
   normalized.data());
}

void GateWithSilu(std::span<const float> up, std::span<float> gate) {
  BM_CHECK(up.size() == gate.size());
  HWY_DYNAMIC_DISPATCH(GateWithSiluOn)(up.data(), up.size(), gate.data());
}

void GateWithGelu(std::span<const float> up, std::span<float> gate) {
  BM_CHECK(up.size() == gate.size());
  HWY_DYNAMIC_DISPATCH(GateWithGeluOn)(up.data(), up.size(), gate.data());
}

void RotateRows(std::span<const float> cosines, std::span<const float> sines,
                size_t half, std::span<float> rows) {
  BM_CHECK(half > 0 && cosines.size() % half == 0);
  BM_CHECK(sines.size() == cosines.size());
  const size_t num_rows = cosines.size() / half;
  if (num_rows == 0) return;
  const size_t num_heads = rows.size() / (num_rows * 2 * half);
  BM_CHECK(rows.size() == num_rows * num_heads * 2 * half);
  for (size_t row = 0; row < num_rows; ++row) {
    HWY_DYNAMIC_DISPATCH(RotateOn)
    (cosines.data() + row * half, sines.data() + row * half, num_heads, half,
     rows.data() + row * num_heads * 2 * half);
  }
}

void AddRows(std::span<const float> rows, std::span<float> sums) {
  BM_CHECK(rows.size() == sums.size());
  HWY_DYNAMIC_DISPATCH(AddOn)(rows.data(), rows.size(), sums.data());
}

}  // namespace blockmgr
#endif  // HWY_ONCE
