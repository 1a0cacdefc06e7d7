#include "kernels/cpu/key_ops.h"

#include <algorithm>

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

// Two vectors of bf16 elements cost less to decode as the even ones and the odd
// ones of a pair of vectors than one after the other. Whatever is combined with
// them must be in that order too. Templates with kPairs do so; HasPairs says
// for which rows they may. More elements than a row has in practice:
constexpr int64_t kMaxPairElements = 1024;

template <class D>
HWY_INLINE bool HasPairs(D d, int64_t head_dim) {
  return head_dim <= kMaxPairElements &&
         head_dim % static_cast<int64_t>(4 * hn::Lanes(d)) == 0;
}

// The next 2 * lanes elements, in two vectors.
template <bool kPairs, class Element, class D>
HWY_INLINE void LoadTwo(D d, const Element* row, hn::Vec<D>& a, hn::Vec<D>& b) {
  if constexpr (kPairs) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Repartition<uint16_t, D> d16;
    const auto pair = hn::BitCast(
        d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row)));
    a = hn::BitCast(d, hn::ShiftLeft<16>(pair));
    b = hn::BitCast(d, hn::And(pair, hn::Set(d32, 0xFFFF0000u)));
  } else {
    a = LoadElements(d, row);
    b = LoadElements(d, row + hn::Lanes(d));
  }
}

#if BM_HAS_BLOCKS
// Puts elements in the order of pairs, and back.
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

template <class D>
HWY_INLINE void JoinPairs(D d, int64_t head_dim, float* x) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < head_dim; i += 2 * lanes) {
    const auto even = hn::LoadU(d, x + i);
    const auto odd = hn::LoadU(d, x + i + lanes);
    hn::StoreInterleaved2(even, odd, d, x + i);
  }
}
#endif

// Kernels: Run is compiled for every kind of rows, and Dispatch picks one.
template <class Kernel, class... Args>
HWY_INLINE void Dispatch(const RowList& rows, Args... args) {
  const bool wide = rows.head_dim % 16 == 0;
#if BM_HAS_BLOCKS
  if (rows.dtype == DType::kBFloat16 && wide &&
      HasPairs(WideTag(), rows.head_dim)) {
    return Kernel::template Run<hwy::bfloat16_t, true>(WideTag(), rows,
                                                       args...);
  }
#endif
  ForElements(rows.dtype, [&](auto element) HWY_ATTR {
    using Element = decltype(element);
    // Scalar targets have one tag: NOLINTNEXTLINE(bugprone-branch-clone)
    if (wide) {
      Kernel::template Run<Element, false>(WideTag(), rows, args...);
    } else {
      Kernel::template Run<Element, false>(NarrowTag(), rows, args...);
    }
  });
}

// The term that is summed over a row's elements k, given x's elements a.
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

// How far ahead of their use rows are fetched: as far as memory is away, and no
// further than the level 1 cache has room. (Measured: 2 KiB is late, from 4 to
// 8 KiB it makes no difference.)
constexpr int64_t kFetchAheadBytes = 4096;

inline int32_t RowsAhead(const RowList& rows) {
  const int64_t row_bytes = int64_t{rows.head_dim} * DTypeBytes(rows.dtype);
  return static_cast<int32_t>(
      std::min<int64_t>(kMaxRowsAhead, CeilDiv(kFetchAheadBytes, row_bytes)));
}

// The rows to fetch while the group of rows from `first` on is read; at the
// end of the list, rows that are being read.
HWY_INLINE const std::byte* const* RowsToFetch(const RowList& rows,
                                               int32_t first,
                                               int32_t rows_ahead) {
  const int32_t ahead = first + rows_ahead;
  return rows.rows + (ahead + kRowGroup <= rows.num_listed ? ahead : first);
}

HWY_INLINE void FetchBytes(const std::byte* bytes, int64_t size) {
  constexpr int64_t kCacheLineBytes = 64;
  for (int64_t i = 0; i < size; i += kCacheLineBytes) hwy::Prefetch(bytes + i);
}

// The terms of one row, summed into one vector. x is in the order of pairs if
// kPairs. Rows are read one by one, from their first element to the last:
// memory is fastest that way. `ahead`, another row, is fetched in as many small
// steps: requests that come in bursts make everything wait for them.
template <Term kTerm, bool kPairs, class Element, class D>
HWY_INLINE hn::Vec<D> ReduceRow(D d, const Element* HWY_RESTRICT row,
                                const std::byte* ahead,
                                const float* HWY_RESTRICT x, int64_t head_dim) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  const auto a = [&](int64_t i) HWY_ATTR {
    if constexpr (kTerm == Term::kSquare) return hn::Zero(d);
    if constexpr (kTerm != Term::kSquare) return hn::LoadU(d, x + i);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  auto k0 = s0, k1 = s0, k2 = s0, k3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= head_dim; i += 4 * lanes) {
    const int64_t j = i + 2 * lanes;
    FetchBytes(ahead + i * kBytes, 4 * lanes * kBytes);
    LoadTwo<kPairs>(d, row + i, k0, k1);
    LoadTwo<kPairs>(d, row + j, k2, k3);
    s0 = AddTerm<kTerm>(k0, a(i), s0);
    s1 = AddTerm<kTerm>(k1, a(i + lanes), s1);
    s2 = AddTerm<kTerm>(k2, a(j), s2);
    s3 = AddTerm<kTerm>(k3, a(j + lanes), s3);
  }
  if constexpr (!kPairs) {
    for (; i < head_dim; i += lanes) {
      s0 = AddTerm<kTerm>(LoadElements(d, row + i), a(i), s0);
    }
  }
  return hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
}

// out[0 .. kRowGroup) = the sums of the terms of the rows from `first` on.
template <Term kTerm, bool kPairs, class Element, class D>
HWY_INLINE void ReduceGroup(D d, const RowList& rows, int32_t first,
                            int32_t rows_ahead, const float* HWY_RESTRICT x,
                            float* out) {
  static_assert(kRowGroup == 4);
  const std::byte* const* ahead = RowsToFetch(rows, first, rows_ahead);
  const std::byte* const* read = rows.rows + first;
  const auto s0 = ReduceRow<kTerm, kPairs>(d, Row<Element>(read[0]), ahead[0],
                                           x, rows.head_dim);
  const auto s1 = ReduceRow<kTerm, kPairs>(d, Row<Element>(read[1]), ahead[1],
                                           x, rows.head_dim);
  const auto s2 = ReduceRow<kTerm, kPairs>(d, Row<Element>(read[2]), ahead[2],
                                           x, rows.head_dim);
  const auto s3 = ReduceRow<kTerm, kPairs>(d, Row<Element>(read[3]), ahead[3],
                                           x, rows.head_dim);
  StoreSums(d, s0, s1, s2, s3, out);
}

template <Term kTerm>
struct Reduce {
  template <class Element, bool kPairs, class D>
  static HWY_INLINE void Run(D d, const RowList& rows, const float* x,
                             float* out) {
#if BM_HAS_BLOCKS
    HWY_ALIGN float pairs[kPairs ? kMaxPairElements : 1];
    if constexpr (kPairs && kTerm != Term::kSquare) {
      SplitPairs(d, x, rows.head_dim, pairs);
      x = pairs;
    }
#endif
    const int32_t rows_ahead = RowsAhead(rows);
    for (int32_t r = 0; r < rows.num_rows; r += kRowGroup) {
      ReduceGroup<kTerm, kPairs, Element>(d, rows, r, rows_ahead, x, out + r);
    }
  }
};

// Returns the sum that a group goes on from. The first group has nothing before
// it.
template <class D>
HWY_INLINE hn::Vec<D> SumSoFar(D d, int32_t first, const float* sum) {
  return first == 0 ? hn::Zero(d) : hn::LoadU(d, sum);
}

// Eight vectors of elements at a time: enough chains to hide the latency of a
// multiply-add. The sum is in the order of pairs if kPairs.
template <bool kPairs, class Element, class D>
HWY_INLINE void AddColumns(D d, const RowList& rows, int32_t first,
                           int64_t begin, const float* HWY_RESTRICT weights,
                           float* HWY_RESTRICT sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const std::byte* const* group = rows.rows + first;
  const int32_t num_rows = std::min(kRowGroup, rows.num_rows - first);
  float* HWY_RESTRICT to = sum + begin;
  auto s0 = SumSoFar(d, first, to), s1 = SumSoFar(d, first, to + lanes);
  auto s2 = SumSoFar(d, first, to + 2 * lanes),
       s3 = SumSoFar(d, first, to + 3 * lanes);
  auto s4 = SumSoFar(d, first, to + 4 * lanes),
       s5 = SumSoFar(d, first, to + 5 * lanes);
  auto s6 = SumSoFar(d, first, to + 6 * lanes),
       s7 = SumSoFar(d, first, to + 7 * lanes);
  auto a = hn::Zero(d), b = a;
  for (int32_t r = 0; r < num_rows; ++r) {
    const Element* HWY_RESTRICT row = Row<Element>(group[r]) + begin;
    const auto w = hn::Set(d, weights[r]);
    LoadTwo<kPairs>(d, row, a, b);
    s0 = hn::MulAdd(w, a, s0);
    s1 = hn::MulAdd(w, b, s1);
    LoadTwo<kPairs>(d, row + 2 * lanes, a, b);
    s2 = hn::MulAdd(w, a, s2);
    s3 = hn::MulAdd(w, b, s3);
    LoadTwo<kPairs>(d, row + 4 * lanes, a, b);
    s4 = hn::MulAdd(w, a, s4);
    s5 = hn::MulAdd(w, b, s5);
    LoadTwo<kPairs>(d, row + 6 * lanes, a, b);
    s6 = hn::MulAdd(w, a, s6);
    s7 = hn::MulAdd(w, b, s7);
  }
  hn::StoreU(s0, d, to);
  hn::StoreU(s1, d, to + lanes);
  hn::StoreU(s2, d, to + 2 * lanes);
  hn::StoreU(s3, d, to + 3 * lanes);
  hn::StoreU(s4, d, to + 4 * lanes);
  hn::StoreU(s5, d, to + 5 * lanes);
  hn::StoreU(s6, d, to + 6 * lanes);
  hn::StoreU(s7, d, to + 7 * lanes);
}

// sum += weights[0] * row `first` + ..., up to kRowGroup rows; = if first is 0.
template <bool kPairs, class Element, class D>
HWY_INLINE void AddGroup(D d, const RowList& rows, int32_t first,
                         const float* HWY_RESTRICT weights,
                         float* HWY_RESTRICT sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const std::byte* const* group = rows.rows + first;
  const int32_t num_rows = std::min(kRowGroup, rows.num_rows - first);
  int64_t i = 0;
  for (; i + 8 * lanes <= rows.head_dim; i += 8 * lanes) {
    AddColumns<kPairs, Element>(d, rows, first, i, weights, sum);
  }
  if constexpr (kPairs) {
    auto a = hn::Zero(d), b = a;
    for (; i < rows.head_dim; i += 2 * lanes) {
      auto s0 = SumSoFar(d, first, sum + i),
           s1 = SumSoFar(d, first, sum + i + lanes);
      for (int32_t r = 0; r < num_rows; ++r) {
        const auto w = hn::Set(d, weights[r]);
        LoadTwo<true>(d, Row<Element>(group[r]) + i, a, b);
        s0 = hn::MulAdd(w, a, s0);
        s1 = hn::MulAdd(w, b, s1);
      }
      hn::StoreU(s0, d, sum + i);
      hn::StoreU(s1, d, sum + i + lanes);
    }
  } else {
    for (; i < rows.head_dim; i += lanes) {
      auto s = SumSoFar(d, first, sum + i);
      for (int32_t r = 0; r < num_rows; ++r) {
        const Element* row = Row<Element>(group[r]) + i;
        s = hn::MulAdd(hn::Set(d, weights[r]), LoadElements(d, row), s);
      }
      hn::StoreU(s, d, sum + i);
    }
  }
}

// norms[i] = sqrt(norms[i]), weights[i] = 1 / max(norms[i], floor), of a group.
HWY_INLINE void FinishNorms(float floor, float* norms, float* weights) {
  const NarrowTag d;
  const auto least = hn::Set(d, floor);
  for (int64_t i = 0; i < kRowGroup; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto norm = hn::Sqrt(hn::LoadU(d, norms + i));
    hn::StoreU(norm, d, norms + i);
    // NaN is kept.
    const auto length = hn::IfThenElse(hn::Lt(norm, least), least, norm);
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), length), d, weights + i);
  }
}

struct SumNormalized {
  template <class Element, bool kPairs, class D>
  static HWY_INLINE void Run(D d, const RowList& rows, float floor,
                             float* norms, float* sum) {
    const int32_t rows_ahead = RowsAhead(rows);
    // A group is added while the next one's norms are computed: these take long
    // to be ready, not long to compute.
    float weights[2][kRowGroup];
    for (int32_t r = 0; r < rows.num_rows; r += kRowGroup) {
      ReduceGroup<Term::kSquare, kPairs, Element>(d, rows, r, rows_ahead,
                                                  nullptr, norms + r);
      FinishNorms(floor, norms + r, weights[r / kRowGroup % 2]);
      if (r == 0) continue;
      const int32_t before = r - kRowGroup;
      AddGroup<kPairs, Element>(d, rows, before,
                                weights[before / kRowGroup % 2], sum);
    }
    const int32_t last = (rows.num_rows - 1) / kRowGroup * kRowGroup;
    AddGroup<kPairs, Element>(d, rows, last, weights[last / kRowGroup % 2],
                              sum);
#if BM_HAS_BLOCKS
    if constexpr (kPairs) JoinPairs(d, rows.head_dim, sum);
#endif
  }
};

struct SumAll {
  template <class Element, bool kPairs, class D>
  static HWY_INLINE void Run(D d, const RowList& rows, float* sum) {
    constexpr float kWeights[kRowGroup] = {1.0f, 1.0f, 1.0f, 1.0f};
    const int32_t rows_ahead = RowsAhead(rows);
    const int64_t row_bytes =
        rows.head_dim * static_cast<int64_t>(sizeof(Element));
    for (int32_t r = 0; r < rows.num_rows; r += kRowGroup) {
      const std::byte* const* ahead = RowsToFetch(rows, r, rows_ahead);
      for (int32_t i = 0; i < kRowGroup; ++i) FetchBytes(ahead[i], row_bytes);
      AddGroup<kPairs, Element>(d, rows, r, kWeights, sum);
    }
#if BM_HAS_BLOCKS
    if constexpr (kPairs) JoinPairs(d, rows.head_dim, sum);
#endif
  }
};

}  // namespace

void SquaredNormsImpl(const RowList& rows, float* out) {
  Dispatch<Reduce<Term::kSquare>>(rows, static_cast<const float*>(nullptr),
                                  out);
}

void DotRowsImpl(const RowList& rows, const float* x, float* out) {
  Dispatch<Reduce<Term::kDot>>(rows, x, out);
}

void SquaredDistancesImpl(const RowList& rows, const float* x, float* out) {
  Dispatch<Reduce<Term::kDistance>>(rows, x, out);
}

void SumRowsImpl(const RowList& rows, float* sum) {
  Dispatch<SumAll>(rows, sum);
}

void SumNormalizedRowsImpl(const RowList& rows, float floor, float* norms,
                           float* sum) {
  Dispatch<SumNormalized>(rows, floor, norms, sum);
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(SquaredNormsImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(SquaredDistancesImpl);
HWY_EXPORT(SumRowsImpl);
HWY_EXPORT(SumNormalizedRowsImpl);

void CheckRows(const RowList& rows) {
  BM_CHECK(rows.num_rows > 0);
  BM_CHECK(rows.num_rows <= rows.num_listed);
}

}  // namespace

void SquaredNorms(const RowList& rows, float* out) {
  CheckRows(rows);
  HWY_DYNAMIC_DISPATCH(SquaredNormsImpl)(rows, out);
}

void SquaredNorms(const KvTile& tile, int32_t num_rows, float* out) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  SquaredNorms({.rows = tile.keys.data(),
                .num_rows = num_rows,
                .num_listed = num_rows,
                .head_dim = tile.head_dim,
                .dtype = tile.dtype},
               out);
}

void DotRows(const RowList& rows, const float* x, float* out) {
  CheckRows(rows);
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(rows, x, out);
}

void SquaredDistances(const RowList& rows, const float* x, float* out) {
  CheckRows(rows);
  HWY_DYNAMIC_DISPATCH(SquaredDistancesImpl)(rows, x, out);
}

void SumRows(const RowList& rows, float* sum) {
  CheckRows(rows);
  HWY_DYNAMIC_DISPATCH(SumRowsImpl)(rows, sum);
}

void SumNormalizedRows(const RowList& rows, float floor, float* norms,
                       float* sum) {
  CheckRows(rows);
  HWY_DYNAMIC_DISPATCH(SumNormalizedRowsImpl)(rows, floor, norms, sum);
}

}  // namespace blockmgr
#endif  // HWY_ONCE
