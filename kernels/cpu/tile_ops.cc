#include "kernels/cpu/tile_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/tile_ops.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#undef KERNELS_CPU_ROW_VECTORS_H_
#include "kernels/cpu/row_vectors.h"

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

constexpr int64_t kCacheLineBytes = 64;

// Asks for kRowGroup rows ahead of their use. Pages are scattered, so the
// hardware's own prefetching stops at each of their ends.
HWY_INLINE void PrefetchRows(const KvTile& tile, int32_t first_row,
                             int64_t offset) {
  const int64_t row_bytes = int64_t{tile.head_dim} * DTypeBytes(tile.dtype);
  for (int32_t r = first_row; r < first_row + kRowGroup; ++r) {
    for (int64_t i = 0; i < row_bytes; i += kCacheLineBytes) {
      hwy::Prefetch(tile.keys[r] + offset + i);
    }
  }
}

// Sets out[0..3] to scale times Sum() of a, b, c and e, with the same bits: the
// blocks of a vector are added first. One reduction of four vectors takes about
// half the time of four.
template <class D>
HWY_INLINE void StoreLogits(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c,
                            hn::Vec<D> e, float scale,
                            float* HWY_RESTRICT out) {
#if BM_HAS_BLOCKS
  const NarrowTag d4;
  StoreSums(d4, SumOfBlocks(d, a), SumOfBlocks(d, b), SumOfBlocks(d, c),
            SumOfBlocks(d, e), out);
  hn::StoreU(hn::Mul(hn::Set(d4, scale), hn::LoadU(d4, out)), d4, out);
#else
  out[0] = scale * Sum(d, a);
  out[1] = scale * Sum(d, b);
  out[2] = scale * Sum(d, c);
  out[3] = scale * Sum(d, e);
#endif
}

// Logits of one query, or of two, against the tile's rows. Each logit has an
// accumulator of its own, so the grouping is invisible in the result. Fetches
// the V rows as well: they are about to be read.
template <class Element, bool kTwo, class D>
HWY_INLINE void DotRows(D d, const KvTile& tile, int32_t num_rows, float scale,
                        const float* HWY_RESTRICT query0,
                        const float* HWY_RESTRICT query1,
                        float* HWY_RESTRICT logits0,
                        float* HWY_RESTRICT logits1) {
  static_assert(kRowGroup == 4);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int32_t r = 0; r < num_rows; r += kRowGroup) {
    const Element* HWY_RESTRICT row0 = Row<Element>(tile.keys[r]);
    const Element* HWY_RESTRICT row1 = Row<Element>(tile.keys[r + 1]);
    const Element* HWY_RESTRICT row2 = Row<Element>(tile.keys[r + 2]);
    const Element* HWY_RESTRICT row3 = Row<Element>(tile.keys[r + 3]);
    if (r + kRowGroup < num_rows) PrefetchRows(tile, r + kRowGroup, 0);
    PrefetchRows(tile, r, tile.kv_stride);
    auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
    auto b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int64_t i = 0; i < tile.head_dim; i += lanes) {
      const auto k0 = LoadElements(d, row0 + i);
      const auto k1 = LoadElements(d, row1 + i);
      const auto k2 = LoadElements(d, row2 + i);
      const auto k3 = LoadElements(d, row3 + i);
      const auto q0 = hn::LoadU(d, query0 + i);
      a0 = hn::MulAdd(q0, k0, a0);
      a1 = hn::MulAdd(q0, k1, a1);
      a2 = hn::MulAdd(q0, k2, a2);
      a3 = hn::MulAdd(q0, k3, a3);
      if constexpr (kTwo) {
        const auto q1 = hn::LoadU(d, query1 + i);
        b0 = hn::MulAdd(q1, k0, b0);
        b1 = hn::MulAdd(q1, k1, b1);
        b2 = hn::MulAdd(q1, k2, b2);
        b3 = hn::MulAdd(q1, k3, b3);
      }
    }
    StoreLogits(d, a0, a1, a2, a3, scale, logits0 + r);
    if constexpr (kTwo) StoreLogits(d, b0, b1, b2, b3, scale, logits1 + r);
  }
}

HWY_INLINE float MaxOf(const float* logits, int64_t n) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  auto greatest = lowest;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    greatest = hn::Max(greatest, hn::LoadU(d, logits + i));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, greatest));
  for (; i < n; ++i) result = std::max(result, logits[i]);
  return result;
}

// Replaces each x by exp(x - max) and returns their sum. Writes up to n rounded
// up to kTileRows.
HWY_INLINE float ExpSum(float* logits, int64_t n, float max) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto live =
        hn::FirstN(d, static_cast<size_t>(std::min(n - i, lanes)));
    const auto x = hn::Sub(hn::LoadU(d, logits + i), shift);
    // Exp makes zeros of NaN.
    const auto exp = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
    const auto e = hn::IfThenElseZero(live, exp);
    hn::StoreU(e, d, logits + i);
    sum = hn::Add(sum, e);
  }
  return Sum(d, sum);
}

// Turns logits into weights of the new state; returns the factor for what the
// state held before.
HWY_INLINE float UpdateState(float* logits, int32_t num_rows,
                             SoftmaxState* state) {
  const bool first = state->sum == 0.0f;
  const float tile_max = MaxOf(logits, num_rows);
  const float max = first ? tile_max : std::max(state->max, tile_max);
  const float factor = first ? 0.0f : std::exp(state->max - max);
  state->sum = state->sum * factor + ExpSum(logits, num_rows, max);
  state->max = max;
  return factor;
}

// output = output * factor + sum_r weights[r] * V[r] on kVectors vectors from
// element `begin`, for one query or for two.
template <class Element, bool kTwo, class D>
HWY_INLINE void AccumulateColumns(D d, const KvTile& tile, int32_t num_rows,
                                  int64_t begin, const float* weights0,
                                  const float* weights1, float factor0,
                                  float factor1, float* output0,
                                  float* output1) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* HWY_RESTRICT out0 = output0 + begin;
  float* HWY_RESTRICT out1 = kTwo ? output1 + begin : nullptr;
  const auto f0 = hn::Set(d, factor0);
  const auto f1 = hn::Set(d, factor1);
  auto a0 = hn::Mul(f0, hn::LoadU(d, out0));
  auto a1 = hn::Mul(f0, hn::LoadU(d, out0 + lanes));
  auto a2 = hn::Mul(f0, hn::LoadU(d, out0 + 2 * lanes));
  auto a3 = hn::Mul(f0, hn::LoadU(d, out0 + 3 * lanes));
  auto b0 = hn::Zero(d), b1 = b0, b2 = b0, b3 = b0;
  if constexpr (kTwo) {
    b0 = hn::Mul(f1, hn::LoadU(d, out1));
    b1 = hn::Mul(f1, hn::LoadU(d, out1 + lanes));
    b2 = hn::Mul(f1, hn::LoadU(d, out1 + 2 * lanes));
    b3 = hn::Mul(f1, hn::LoadU(d, out1 + 3 * lanes));
  }
  for (int32_t r = 0; r < num_rows; ++r) {
    const Element* HWY_RESTRICT row =
        Row<Element>(tile.keys[r] + tile.kv_stride) + begin;
    const auto v0 = LoadElements(d, row);
    const auto v1 = LoadElements(d, row + lanes);
    const auto v2 = LoadElements(d, row + 2 * lanes);
    const auto v3 = LoadElements(d, row + 3 * lanes);
    const auto w0 = hn::Set(d, weights0[r]);
    a0 = hn::MulAdd(w0, v0, a0);
    a1 = hn::MulAdd(w0, v1, a1);
    a2 = hn::MulAdd(w0, v2, a2);
    a3 = hn::MulAdd(w0, v3, a3);
    if constexpr (kTwo) {
      const auto w1 = hn::Set(d, weights1[r]);
      b0 = hn::MulAdd(w1, v0, b0);
      b1 = hn::MulAdd(w1, v1, b1);
      b2 = hn::MulAdd(w1, v2, b2);
      b3 = hn::MulAdd(w1, v3, b3);
    }
  }
  hn::StoreU(a0, d, out0);
  hn::StoreU(a1, d, out0 + lanes);
  hn::StoreU(a2, d, out0 + 2 * lanes);
  hn::StoreU(a3, d, out0 + 3 * lanes);
  if constexpr (kTwo) {
    hn::StoreU(b0, d, out1);
    hn::StoreU(b1, d, out1 + lanes);
    hn::StoreU(b2, d, out1 + 2 * lanes);
    hn::StoreU(b3, d, out1 + 3 * lanes);
  }
}

// Accumulates the columns that do not fill four vectors, one query at a time.
template <class Element, class D>
HWY_INLINE void AccumulateRest(D d, const KvTile& tile, int32_t num_rows,
                               int64_t begin, const float* weights,
                               float factor, float* output) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = begin; i < tile.head_dim; i += lanes) {
    auto sum = hn::Mul(hn::Set(d, factor), hn::LoadU(d, output + i));
    for (int32_t r = 0; r < num_rows; ++r) {
      const Element* row = Row<Element>(tile.keys[r] + tile.kv_stride) + i;
      sum = hn::MulAdd(hn::Set(d, weights[r]), LoadElements(d, row), sum);
    }
    hn::StoreU(sum, d, output + i);
  }
}

// AttendTile for one query, or for two: rows are read once for both.
template <class Element, bool kTwo, class D>
HWY_INLINE void AttendRows(D d, const KvTile& tile, int32_t num_rows,
                           float scale, const float* queries,
                           SoftmaxState* states, float* output) {
  HWY_ALIGN float weights[2][kTileRows] = {};
  const float* query1 = kTwo ? queries + tile.head_dim : nullptr;
  float* output1 = kTwo ? output + tile.head_dim : nullptr;
  DotRows<Element, kTwo>(d, tile, num_rows, scale, queries, query1, weights[0],
                         weights[1]);
  const float factor0 = UpdateState(weights[0], num_rows, &states[0]);
  float factor1 = 0.0f;
  if constexpr (kTwo) {
    factor1 = UpdateState(weights[1], num_rows, &states[1]);
  }
  const int64_t step = 4 * static_cast<int64_t>(hn::Lanes(d));
  int64_t begin = 0;
  for (; begin + step <= tile.head_dim; begin += step) {
    AccumulateColumns<Element, kTwo>(d, tile, num_rows, begin, weights[0],
                                     weights[1], factor0, factor1, output,
                                     output1);
  }
  AccumulateRest<Element>(d, tile, num_rows, begin, weights[0], factor0,
                          output);
  if constexpr (kTwo) {
    AccumulateRest<Element>(d, tile, num_rows, begin, weights[1], factor1,
                            output1);
  }
}

template <class Element, class D>
HWY_INLINE void AttendGroup(D d, const KvTile& tile, int32_t num_rows,
                            float scale, const float* queries,
                            std::span<SoftmaxState> states, float* output) {
  const std::size_t dim = static_cast<std::size_t>(tile.head_dim);
  std::size_t q = 0;
  for (; q + 2 <= states.size(); q += 2) {
    AttendRows<Element, true>(d, tile, num_rows, scale, queries + q * dim,
                              &states[q], output + q * dim);
  }
  if (q < states.size()) {
    AttendRows<Element, false>(d, tile, num_rows, scale, queries + q * dim,
                               &states[q], output + q * dim);
  }
}

template <class Element>
void AttendElements(const KvTile& tile, int32_t num_rows, float scale,
                    const float* queries, std::span<SoftmaxState> states,
                    float* output) {
  // Scalar targets have one tag: NOLINTNEXTLINE(bugprone-branch-clone)
  if (tile.head_dim % 16 == 0) {
    AttendGroup<Element>(WideTag(), tile, num_rows, scale, queries, states,
                         output);
  } else {
    AttendGroup<Element>(NarrowTag(), tile, num_rows, scale, queries, states,
                         output);
  }
}

}  // namespace

void AttendTileImpl(const KvTile& tile, int32_t num_rows, float scale,
                    const float* queries, std::span<SoftmaxState> states,
                    float* output) {
  ForElements(tile.dtype, [&](auto element) HWY_ATTR {
    AttendElements<decltype(element)>(tile, num_rows, scale, queries, states,
                                      output);
  });
}

void AddSoftmaxImpl(float* logits, int64_t num_logits, std::span<float> sums) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float max = MaxOf(logits, num_logits);
  const float total = ExpSum(logits, num_logits, max);
  const auto divisor = hn::Set(d, total);
  const int64_t size = static_cast<int64_t>(sums.size());
  int64_t j = 0;
  for (; j + lanes <= size; j += lanes) {
    const auto share = hn::Div(hn::LoadU(d, logits + j), divisor);
    hn::StoreU(hn::Add(hn::LoadU(d, &sums[j]), share), d, &sums[j]);
  }
  for (; j < size; ++j) sums[j] += logits[j] / total;
}

// ToBFloat16 in vectors.
void EncodeBFloat16Impl(std::span<const float> in, std::span<uint16_t> out) {
  const NarrowTag d;
  const hn::RebindToSigned<NarrowTag> d32;
  const hn::Rebind<uint16_t, NarrowTag> d16;
  const std::size_t lanes = hn::Lanes(d);
  const auto rounding = hn::Set(d32, 0x7FFF);
  const auto one = hn::Set(d32, 1);
  const auto quiet = hn::Set(d32, 0x40);
  const hn::RebindToUnsigned<NarrowTag> du32;
  for (std::size_t i = 0; i < in.size(); i += lanes) {
    const auto x = hn::LoadU(d, &in[i]);
    const auto bits = hn::BitCast(du32, x);
    const auto high = hn::BitCast(d32, hn::ShiftRight<16>(bits));
    const auto bias = hn::Add(rounding, hn::And(high, one));
    const auto sum = hn::Add(bits, hn::BitCast(du32, bias));
    const auto rounded = hn::BitCast(d32, hn::ShiftRight<16>(sum));
    const auto nan = hn::RebindMask(d32, hn::IsNaN(x));
    const auto result = hn::IfThenElse(nan, hn::Or(high, quiet), rounded);
    hn::StoreU(hn::DemoteTo(d16, result), d16, &out[i]);
  }
}

void EncodeFloat16Impl(std::span<const float> in, std::span<uint16_t> out) {
#if BM_HAS_FLOAT16
  const NarrowTag d;
  const hn::Rebind<hwy::float16_t, NarrowTag> d16;
  for (std::size_t i = 0; i < in.size(); i += hn::Lanes(d)) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, &in[i])), d16,
               reinterpret_cast<hwy::float16_t*>(&out[i]));
  }
#else
  std::ranges::transform(in, out.begin(), ToFloat16);
#endif
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(AttendTileImpl);
HWY_EXPORT(AddSoftmaxImpl);
HWY_EXPORT(EncodeBFloat16Impl);
HWY_EXPORT(EncodeFloat16Impl);

}  // namespace

void AttendTile(const KvTile& tile, int32_t num_rows, float scale,
                const float* queries, std::span<SoftmaxState> states,
                float* output) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(AttendTileImpl)
  (tile, num_rows, scale, queries, states, output);
}

void AddSoftmax(float* logits, int64_t num_logits, std::span<float> sums) {
  BM_CHECK(num_logits > 0);
  BM_CHECK(static_cast<int64_t>(sums.size()) <= num_logits);
  HWY_DYNAMIC_DISPATCH(AddSoftmaxImpl)(logits, num_logits, sums);
}

void EncodeBFloat16(std::span<const float> in, std::span<uint16_t> out) {
  BM_CHECK(in.size() == out.size());
  BM_CHECK(in.size() % 4 == 0);
  HWY_DYNAMIC_DISPATCH(EncodeBFloat16Impl)(in, out);
}

void EncodeFloat16(std::span<const float> in, std::span<uint16_t> out) {
  BM_CHECK(in.size() == out.size());
  BM_CHECK(in.size() % 4 == 0);
  HWY_DYNAMIC_DISPATCH(EncodeFloat16Impl)(in, out);
}

}  // namespace blockmgr
#endif  // HWY_ONCE
