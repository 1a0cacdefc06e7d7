#include "kernels/cpu/packed_ops.h"

#include "blockmgr/base/check.h"

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed_ops.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#undef KERNELS_CPU_ROW_VECTORS_H_
#include "kernels/cpu/row_vectors.h"

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

// A packed tile is a row of panels: [panel][element][row of the panel]. A panel
// is two vectors wide: with six chains of two vectors each, a set of 16
// registers (AVX2) holds all of them, a panel's pair and a broadcast, which is
// three loads for every four multiply-adds.
HWY_INLINE int64_t PanelRows() {
  return 2 * static_cast<int64_t>(hn::Lanes(WideTag()));
}

#if BM_HAS_BLOCKS
// Four elements of rows[0], rows[4], rows[8], ...: one per 128-bit block.
template <class Element, class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const std::byte* const* rows,
                                 int64_t element) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return LoadElements(d, Row<Element>(rows[0]) + element);
  } else {
    const hn::Half<D> half;
    const auto upper =
        LoadBlocks<Element>(half, rows + hn::MaxLanes(half), element);
    return hn::Combine(d, upper, LoadBlocks<Element>(half, rows, element));
  }
}

// Elements [element, element + 4) of one vector's worth of rows, turned.
// out: four vectors, `stride` floats apart.
template <class Element, class D>
HWY_INLINE void PackBlock(D d, const std::byte* const* rows, int64_t element,
                          float* out, int64_t stride) {
  const hn::RepartitionToWide<D> wide;
  const auto r0 = LoadBlocks<Element>(d, rows, element);
  const auto r1 = LoadBlocks<Element>(d, rows + 1, element);
  const auto r2 = LoadBlocks<Element>(d, rows + 2, element);
  const auto r3 = LoadBlocks<Element>(d, rows + 3, element);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  const auto c0 = hn::InterleaveLower(wide, low01, low23);
  const auto c1 = hn::InterleaveUpper(wide, low01, low23);
  const auto c2 = hn::InterleaveLower(wide, high01, high23);
  const auto c3 = hn::InterleaveUpper(wide, high01, high23);
  hn::StoreU(hn::BitCast(d, c0), d, out);
  hn::StoreU(hn::BitCast(d, c1), d, out + stride);
  hn::StoreU(hn::BitCast(d, c2), d, out + 2 * stride);
  hn::StoreU(hn::BitCast(d, c3), d, out + 3 * stride);
}
#else
template <class Element, class D>
HWY_INLINE void PackBlock(D d, const std::byte* const* rows, int64_t element,
                          float* out, int64_t stride) {
  const NarrowTag narrow;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(narrow));
  HWY_ALIGN float values[4];
  for (size_t r = 0; r < hn::Lanes(d); ++r) {
    for (int64_t i = 0; i < 4; i += lanes) {
      const Element* from = Row<Element>(rows[r]) + element + i;
      hn::StoreU(LoadElements(narrow, from), narrow, values + i);
    }
    for (int64_t i = 0; i < 4; ++i) out[i * stride + r] = values[i];
  }
}
#endif

template <class Element>
void PackElements(const KvTile& tile, int32_t num_rows, float* packed) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = PanelRows();
  for (int64_t row = 0; row < num_rows; row += width) {
    float* panel = packed + row * tile.head_dim;
    const std::byte* const* rows = &tile.keys[row];
    for (int64_t i = 0; i < tile.head_dim; i += 4) {
      PackBlock<Element>(d, rows, i, panel + i * width, width);
      PackBlock<Element>(d, rows + lanes, i, panel + i * width + lanes, width);
    }
  }
}

// Hands use(v, lower, upper) the products of vectors[v] with a panel's rows.
template <int kVectors, class D, class Use>
HWY_INLINE void DotPanel(D d, const float* HWY_RESTRICT panel, int64_t head_dim,
                         const float* const* vectors, const Use& use) {
  static_assert(kVectors == 1 || kVectors == 2 || kVectors == 4 ||
                kVectors == 6);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto vector = [vectors](int v) {
    return vectors[v < kVectors ? v : 0];
  };
  const float* x0 = vector(0);
  const float* x1 = vector(1);
  const float* x2 = vector(2);
  const float* x3 = vector(3);
  const float* x4 = vector(4);
  const float* x5 = vector(5);
  auto a0 = hn::Zero(d), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0;
  auto e0 = a0, e1 = a0, f0 = a0, f1 = a0, g0 = a0, g1 = a0;
  for (int64_t i = 0; i < head_dim; ++i, panel += 2 * lanes) {
    const auto p0 = hn::Load(d, panel);
    const auto p1 = hn::Load(d, panel + lanes);
    auto x = hn::Set(d, x0[i]);
    a0 = hn::MulAdd(x, p0, a0);
    a1 = hn::MulAdd(x, p1, a1);
    if constexpr (kVectors >= 2) {
      x = hn::Set(d, x1[i]);
      b0 = hn::MulAdd(x, p0, b0);
      b1 = hn::MulAdd(x, p1, b1);
    }
    if constexpr (kVectors >= 4) {
      x = hn::Set(d, x2[i]);
      c0 = hn::MulAdd(x, p0, c0);
      c1 = hn::MulAdd(x, p1, c1);
      x = hn::Set(d, x3[i]);
      e0 = hn::MulAdd(x, p0, e0);
      e1 = hn::MulAdd(x, p1, e1);
    }
    if constexpr (kVectors >= 6) {
      x = hn::Set(d, x4[i]);
      f0 = hn::MulAdd(x, p0, f0);
      f1 = hn::MulAdd(x, p1, f1);
      x = hn::Set(d, x5[i]);
      g0 = hn::MulAdd(x, p0, g0);
      g1 = hn::MulAdd(x, p1, g1);
    }
  }
  use(0, a0, a1);
  if constexpr (kVectors >= 2) use(1, b0, b1);
  if constexpr (kVectors >= 4) {
    use(2, c0, c1);
    use(3, e0, e1);
  }
  if constexpr (kVectors >= 6) {
    use(4, f0, f1);
    use(5, g0, g1);
  }
}

// Does so for any number of vectors, in order.
template <class D, class Use>
HWY_INLINE void DotPanelAll(D d, const float* panel, int64_t head_dim,
                            std::span<const float* const> vectors,
                            const Use& use) {
  const int64_t size = static_cast<int64_t>(vectors.size());
  int64_t first = 0;
  const auto shifted = [&](int64_t v, auto lower, auto upper)
                           HWY_ATTR { use(first + v, lower, upper); };
  for (; first + 6 <= size; first += 6) {
    DotPanel<6>(d, panel, head_dim, &vectors[first], shifted);
  }
  if (first + 4 <= size) {
    DotPanel<4>(d, panel, head_dim, &vectors[first], shifted);
    first += 4;
  }
  if (first + 2 <= size) {
    DotPanel<2>(d, panel, head_dim, &vectors[first], shifted);
    first += 2;
  }
  if (first < size) {
    DotPanel<1>(d, panel, head_dim, &vectors[first], shifted);
  }
}

}  // namespace

void PackRowsImpl(const KvTile& tile, int32_t num_rows, float* packed) {
  ForElements(tile.dtype, [&](auto element) HWY_ATTR {
    PackElements<decltype(element)>(tile, num_rows, packed);
  });
}

void DotPackedImpl(const float* packed, int64_t head_dim, int32_t num_rows,
                   float scale, std::span<const float* const> vectors,
                   float* out, int64_t stride) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  for (int64_t row = 0; row < num_rows; row += 2 * lanes) {
    const auto store = [&](int64_t v, auto lower, auto upper) HWY_ATTR {
      float* to = out + v * stride + row;
      hn::StoreU(hn::Mul(factor, lower), d, to);
      hn::StoreU(hn::Mul(factor, upper), d, to + lanes);
    };
    DotPanelAll(d, packed + row * head_dim, head_dim, vectors, store);
  }
}

void AddAbsDotsImpl(const float* packed, int64_t head_dim, int32_t num_rows,
                    std::span<const float* const> vectors, float* sums) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < num_rows; row += 2 * lanes) {
    auto sum0 = hn::LoadU(d, sums + row);
    auto sum1 = hn::LoadU(d, sums + row + lanes);
    const auto add = [&](int64_t /*v*/, auto lower, auto upper) HWY_ATTR {
      sum0 = hn::Add(sum0, hn::Abs(lower));
      sum1 = hn::Add(sum1, hn::Abs(upper));
    };
    DotPanelAll(d, packed + row * head_dim, head_dim, vectors, add);
    hn::StoreU(sum0, d, sums + row);
    hn::StoreU(sum1, d, sums + row + lanes);
  }
}

void QuadraticFormsImpl(const float* packed, int32_t num_rows,
                        std::span<const float* const> rows, float* forms) {
  const WideTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t head_dim = static_cast<int64_t>(rows.size());
  for (int64_t row = 0; row < num_rows; row += 2 * lanes) {
    const float* panel = packed + row * head_dim;
    auto sum0 = hn::Zero(d);
    auto sum1 = hn::Zero(d);
    const auto add = [&](int64_t v, auto lower, auto upper) HWY_ATTR {
      const float* elements = panel + v * 2 * lanes;
      sum0 = hn::MulAdd(hn::Load(d, elements), lower, sum0);
      sum1 = hn::MulAdd(hn::Load(d, elements + lanes), upper, sum1);
    };
    DotPanelAll(d, panel, head_dim, rows, add);
    hn::StoreU(sum0, d, forms + row);
    hn::StoreU(sum1, d, forms + row + lanes);
  }
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(PackRowsImpl);
HWY_EXPORT(DotPackedImpl);
HWY_EXPORT(AddAbsDotsImpl);
HWY_EXPORT(QuadraticFormsImpl);

}  // namespace

AlignedFloats AllocatePacked(int64_t head_dim, int64_t num_tiles) {
  return hwy::AllocateAligned<float>(
      static_cast<std::size_t>(PackedSize(head_dim) * num_tiles));
}

void PackRows(const KvTile& tile, int32_t num_rows, float* packed) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(PackRowsImpl)(tile, num_rows, packed);
}

void DotPacked(const float* packed, int64_t head_dim, int32_t num_rows,
               float scale, std::span<const float* const> vectors, float* out,
               int64_t stride) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  BM_CHECK(stride >= kTileRows);
  HWY_DYNAMIC_DISPATCH(DotPackedImpl)
  (packed, head_dim, num_rows, scale, vectors, out, stride);
}

void AddAbsDots(const float* packed, int64_t head_dim, int32_t num_rows,
                std::span<const float* const> vectors, float* sums) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(AddAbsDotsImpl)
  (packed, head_dim, num_rows, vectors, sums);
}

void QuadraticForms(const float* packed, int32_t num_rows,
                    std::span<const float* const> rows, float* forms) {
  BM_CHECK(num_rows > 0 && num_rows <= kTileRows);
  HWY_DYNAMIC_DISPATCH(QuadraticFormsImpl)(packed, num_rows, rows, forms);
}

}  // namespace blockmgr
#endif  // HWY_ONCE
