#include "kernels/cpu/key_ops.h"

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/key_ops.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#undef KERNELS_CPU_ROW_VECTORS_H_
#include "kernels/cpu/row_vectors.h"

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

// What is summed over a row's elements k, given x's elements a.
enum class Term { kSquare, kDot, kDistance };

template <Term kTerm, class V>
HWY_INLINE V AddTerm(V k, V a, V sum) {
  if constexpr (kTerm == Term::kSquare) return hn::MulAdd(k, k, sum);
  if constexpr (kTerm == Term::kDot) return hn::MulAdd(k, a, sum);
  if constexpr (kTerm == Term::kDistance) {
    const V difference = hn::Sub(k, a);
    return hn::MulAdd(difference, difference, sum);
  }
}

// The terms of one row, summed into one vector. Rows are read one by one, from
// their first element to the last: memory is fastest that way.
template <Term kTerm, class Element, class D>
HWY_INLINE hn::Vec<D> ReduceRow(D d, const Element* HWY_RESTRICT row,
                                const float* HWY_RESTRICT x, int64_t head_dim) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto a = [&](int64_t i) HWY_ATTR {
    if constexpr (kTerm == Term::kSquare) return hn::Zero(d);
    if constexpr (kTerm != Term::kSquare) return hn::LoadU(d, x + i);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= head_dim; i += 4 * lanes) {
    const int64_t j = i + lanes;
    const int64_t k = j + lanes;
    const int64_t l = k + lanes;
    s0 = AddTerm<kTerm>(LoadElements(d, row + i), a(i), s0);
    s1 = AddTerm<kTerm>(LoadElements(d, row + j), a(j), s1);
    s2 = AddTerm<kTerm>(LoadElements(d, row + k), a(k), s2);
    s3 = AddTerm<kTerm>(LoadElements(d, row + l), a(l), s3);
  }
  for (; i < head_dim; i += lanes) {
    s0 = AddTerm<kTerm>(LoadElements(d, row + i), a(i), s0);
  }
  return hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
}

// Two vectors of bf16 elements cost less to decode as the even ones and the odd
// ones of a pair of vectors than one after the other. Whatever is combined with
// them must be in that order too.
template <class Element>
constexpr bool kDecodesPairs = BM_HAS_BLOCKS && sizeof(Element) == 2;

template <class D>
HWY_INLINE bool HasPairs(D d, int64_t head_dim) {
  return head_dim % static_cast<int64_t>(4 * hn::Lanes(d)) == 0;
}

template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadPair(D /*d*/,
                                                     const uint16_t* row) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Repartition<uint16_t, D> d16;
  return hn::BitCast(d32, hn::LoadU(d16, row));
}

template <class D, class U>
HWY_INLINE hn::Vec<D> EvenOfPair(D d, U pair) {
  return hn::BitCast(d, hn::ShiftLeft<16>(pair));
}

template <class D, class U>
HWY_INLINE hn::Vec<D> OddOfPair(D d, U pair) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::And(pair, hn::Set(d32, 0xFFFF0000u)));
}

// Elements in the order of pairs. REQUIRES: HasPairs.
template <class D>
HWY_INLINE void SplitPairs(D d, const float* x, int64_t head_dim, float* out) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < head_dim; i += 2 * lanes) {
    hn::Vec<D> even, odd;
    hn::LoadInterleaved2(d, x + i, even, odd);
    hn::StoreU(even, d, out + i);
    hn::StoreU(odd, d, out + i + lanes);
  }
}

// ReduceRow for bf16, with x in the order of pairs. REQUIRES: HasPairs.
template <Term kTerm, class D>
HWY_INLINE hn::Vec<D> ReducePairs(D d, const uint16_t* HWY_RESTRICT row,
                                  const float* HWY_RESTRICT x,
                                  int64_t head_dim) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto a = [&](int64_t i) HWY_ATTR {
    if constexpr (kTerm == Term::kSquare) return hn::Zero(d);
    if constexpr (kTerm != Term::kSquare) return hn::LoadU(d, x + i);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i < head_dim; i += 4 * lanes) {
    const int64_t j = i + 2 * lanes;
    const auto p = LoadPair(d, row + i);
    const auto q = LoadPair(d, row + j);
    s0 = AddTerm<kTerm>(EvenOfPair(d, p), a(i), s0);
    s1 = AddTerm<kTerm>(OddOfPair(d, p), a(i + lanes), s1);
    s2 = AddTerm<kTerm>(EvenOfPair(d, q), a(j), s2);
    s3 = AddTerm<kTerm>(OddOfPair(d, q), a(j + lanes), s3);
  }
  return hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
}

// How far ahead of their use rows are fetched: what the hardware's prefetching
// is late with, after a jump to another page. (Measured.)
constexpr int64_t kFetchAheadBytes = 2048;

HWY_INLINE void FetchRows(const std::byte* const* rows, int64_t row_bytes) {
  constexpr int64_t kCacheLineBytes = 64;
  for (int32_t r = 0; r < kRowGroup; ++r) {
    for (int64_t i = 0; i < row_bytes; i += kCacheLineBytes) {
      hwy::Prefetch(rows[r] + i);
    }
  }
}

// out[r] = the sum of the lanes of reduce(r)
template <class D, class ReduceOne>
HWY_INLINE void ForEachRow(D d, const KvTile& tile, int32_t num_rows,
                           const ReduceOne& reduce, float* out) {
  static_assert(kRowGroup == 4);
  const int64_t row_bytes = int64_t{tile.head_dim} * DTypeBytes(tile.dtype);
  const int32_t rows_ahead =
      kRowGroup *
      static_cast<int32_t>(CeilDiv(kFetchAheadBytes, kRowGroup * row_bytes));
  for (int32_t r = 0; r < num_rows; r += kRowGroup) {
    if (r + rows_ahead < num_rows) {
      FetchRows(&tile.keys[r + rows_ahead], row_bytes);
    }
    const auto s0 = reduce(r);
    const auto s1 = reduce(r + 1);
    const auto s2 = reduce(r + 2);
    const auto s3 = reduce(r + 3);
    StoreSums(d, s0, s1, s2, s3, out + r);
  }
}

template <Term kTerm, class Element, class D>
HWY_INLINE void ReduceRows(D d, const KvTile& tile, int32_t num_rows,
                           const float* x, float* out) {
  const int64_t head_dim = tile.head_dim;
  if constexpr (kDecodesPairs<Element>) {
    // More elements than a row has in practice.
    constexpr int64_t kMaxPairs = 1024;
    if (HasPairs(d, head_dim) && head_dim <= kMaxPairs) {
      HWY_ALIGN float pairs[kMaxPairs];
      if constexpr (kTerm != Term::kSquare) SplitPairs(d, x, head_dim, pairs);
      const auto reduce = [&](int32_t r) HWY_ATTR {
        return ReducePairs<kTerm>(d, Row<uint16_t>(tile.keys[r]), pairs,
                                  head_dim);
      };
      return ForEachRow(d, tile, num_rows, reduce, out);
    }
  }
  const auto reduce = [&](int32_t r) HWY_ATTR {
    return ReduceRow<kTerm>(d, Row<Element>(tile.keys[r]), x, head_dim);
  };
  ForEachRow(d, tile, num_rows, reduce, out);
}

template <Term kTerm>
HWY_INLINE void Reduce(const KvTile& tile, int32_t num_rows, const float* x,
                       float* out) {
  const bool wide = tile.head_dim % 16 == 0;
  if (tile.dtype == DType::kFloat32) {
    if (wide) {
      ReduceRows<kTerm, float>(WideTag(), tile, num_rows, x, out);
    } else {
      ReduceRows<kTerm, float>(NarrowTag(), tile, num_rows, x, out);
    }
  } else {
    if (wide) {
      ReduceRows<kTerm, uint16_t>(WideTag(), tile, num_rows, x, out);
    } else {
      ReduceRows<kTerm, uint16_t>(NarrowTag(), tile, num_rows, x, out);
    }
  }
}

// Eight vectors of elements at a time: enough chains to hide the latency of a
// multiply-add.
template <class Element, class D>
HWY_INLINE void SumColumns(D d, const KvTile& tile, int32_t num_rows,
                           int64_t begin, const float* HWY_RESTRICT weights,
                           float* HWY_RESTRICT sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  auto s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (int32_t r = 0; r < num_rows; ++r) {
    const Element* HWY_RESTRICT row = Row<Element>(tile.keys[r]) + begin;
    const auto w = hn::Set(d, weights[r]);
    s0 = hn::MulAdd(w, LoadElements(d, row), s0);
    s1 = hn::MulAdd(w, LoadElements(d, row + lanes), s1);
    s2 = hn::MulAdd(w, LoadElements(d, row + 2 * lanes), s2);
    s3 = hn::MulAdd(w, LoadElements(d, row + 3 * lanes), s3);
    s4 = hn::MulAdd(w, LoadElements(d, row + 4 * lanes), s4);
    s5 = hn::MulAdd(w, LoadElements(d, row + 5 * lanes), s5);
    s6 = hn::MulAdd(w, LoadElements(d, row + 6 * lanes), s6);
    s7 = hn::MulAdd(w, LoadElements(d, row + 7 * lanes), s7);
  }
  float* HWY_RESTRICT to = sum + begin;
  hn::StoreU(s0, d, to);
  hn::StoreU(s1, d, to + lanes);
  hn::StoreU(s2, d, to + 2 * lanes);
  hn::StoreU(s3, d, to + 3 * lanes);
  hn::StoreU(s4, d, to + 4 * lanes);
  hn::StoreU(s5, d, to + 5 * lanes);
  hn::StoreU(s6, d, to + 6 * lanes);
  hn::StoreU(s7, d, to + 7 * lanes);
}

// The same for bf16 in pairs, of as many elements.
template <class D>
HWY_INLINE void SumPairs(D d, const KvTile& tile, int32_t num_rows,
                         int64_t begin, const float* HWY_RESTRICT weights,
                         float* HWY_RESTRICT sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  auto s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (int32_t r = 0; r < num_rows; ++r) {
    const uint16_t* HWY_RESTRICT row = Row<uint16_t>(tile.keys[r]) + begin;
    const auto w = hn::Set(d, weights[r]);
    const auto p0 = LoadPair(d, row);
    const auto p1 = LoadPair(d, row + 2 * lanes);
    const auto p2 = LoadPair(d, row + 4 * lanes);
    const auto p3 = LoadPair(d, row + 6 * lanes);
    s0 = hn::MulAdd(w, EvenOfPair(d, p0), s0);
    s1 = hn::MulAdd(w, OddOfPair(d, p0), s1);
    s2 = hn::MulAdd(w, EvenOfPair(d, p1), s2);
    s3 = hn::MulAdd(w, OddOfPair(d, p1), s3);
    s4 = hn::MulAdd(w, EvenOfPair(d, p2), s4);
    s5 = hn::MulAdd(w, OddOfPair(d, p2), s5);
    s6 = hn::MulAdd(w, EvenOfPair(d, p3), s6);
    s7 = hn::MulAdd(w, OddOfPair(d, p3), s7);
  }
  float* HWY_RESTRICT to = sum + begin;
  hn::StoreInterleaved2(s0, s1, d, to);
  hn::StoreInterleaved2(s2, s3, d, to + 2 * lanes);
  hn::StoreInterleaved2(s4, s5, d, to + 4 * lanes);
  hn::StoreInterleaved2(s6, s7, d, to + 6 * lanes);
}

template <class Element, class D>
HWY_INLINE void SumRows(D d, const KvTile& tile, int32_t num_rows,
                        const float* weights, float* sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 8 * lanes <= tile.head_dim; i += 8 * lanes) {
    if constexpr (kDecodesPairs<Element>) {
      SumPairs(d, tile, num_rows, i, weights, sum);
    } else {
      SumColumns<Element>(d, tile, num_rows, i, weights, sum);
    }
  }
  for (; i < tile.head_dim; i += lanes) {
    auto s = hn::Zero(d);
    for (int32_t r = 0; r < num_rows; ++r) {
      const Element* row = Row<Element>(tile.keys[r]) + i;
      s = hn::MulAdd(hn::Set(d, weights[r]), LoadElements(d, row), s);
    }
    hn::StoreU(s, d, sum + i);
  }
}

template <class Element>
void SumElements(const KvTile& tile, int32_t num_rows, const float* weights,
                 float* sum) {
  // Scalar targets have one tag: NOLINTNEXTLINE(bugprone-branch-clone)
  if (tile.head_dim % 16 == 0) {
    SumRows<Element>(WideTag(), tile, num_rows, weights, sum);
  } else {
    SumRows<Element>(NarrowTag(), tile, num_rows, weights, sum);
  }
}

}  // namespace

void SquaredNormsImpl(const KvTile& tile, int32_t num_rows, float* out) {
  Reduce<Term::kSquare>(tile, num_rows, nullptr, out);
}

void DotRowsImpl(const KvTile& tile, int32_t num_rows, const float* x,
                 float* out) {
  Reduce<Term::kDot>(tile, num_rows, x, out);
}

void SquaredDistancesImpl(const KvTile& tile, int32_t num_rows, const float* x,
                          float* out) {
  Reduce<Term::kDistance>(tile, num_rows, x, out);
}

void WeightedRowSumImpl(const KvTile& tile, int32_t num_rows,
                        const float* weights, float* sum) {
  if (tile.dtype == DType::kFloat32) {
    SumElements<float>(tile, num_rows, weights, sum);
  } else {
    SumElements<uint16_t>(tile, num_rows, weights, sum);
  }
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(SquaredNormsImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(SquaredDistancesImpl);
HWY_EXPORT(WeightedRowSumImpl);

}  // namespace

void SquaredNorms(const KvTile& tile, int32_t num_rows, float* out) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(SquaredNormsImpl)(tile, num_rows, out);
}

void DotRows(const KvTile& tile, int32_t num_rows, const float* x, float* out) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(tile, num_rows, x, out);
}

void SquaredDistances(const KvTile& tile, int32_t num_rows, const float* x,
                      float* out) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(SquaredDistancesImpl)(tile, num_rows, x, out);
}

void WeightedRowSum(const KvTile& tile, int32_t num_rows, const float* weights,
                    float* sum) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(WeightedRowSumImpl)(tile, num_rows, weights, sum);
}

}  // namespace blockmgr
#endif  // HWY_ONCE
