// How the vector code of this folder reads rows of K and V. For files that
// Highway compiles once per instruction set: they #undef the guard first, so
// that each set gets its own copy.
#ifndef KERNELS_CPU_ROW_VECTORS_H_
#define KERNELS_CPU_ROW_VECTORS_H_

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

// Whether four vectors can be reduced or transposed in blocks of 128 bits whose
// number is known to the compiler.
#undef BM_HAS_BLOCKS
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
#define BM_HAS_BLOCKS 0
#else
#define BM_HAS_BLOCKS 1
#endif

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Rows of 16 elements or a multiple fill every vector. Other rows still are a
// multiple of 4 elements, so neither case has a remainder.
using WideTag = hn::CappedTag<float, 16>;
using NarrowTag = hn::CappedTag<float, 4>;

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const float* row) {
  return hn::LoadU(d, row);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const uint16_t* row) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(
      d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, row))));
}

template <class Element>
HWY_INLINE const Element* Row(const std::byte* bytes) {
  return reinterpret_cast<const Element*>(bytes);
}

template <class D>
HWY_INLINE float Sum(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

#if BM_HAS_BLOCKS
// The sum of the 128-bit blocks of v.
template <class D>
HWY_INLINE hn::Vec<NarrowTag> SumOfBlocks(D /*d*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumOfBlocks(half,
                       hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// out[0..3] = the sums of the lanes of a, b, c, e.
template <class D>
HWY_INLINE void StoreSums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c,
                          hn::Vec<D> e, float* out) {
#if BM_HAS_BLOCKS
  const hn::RepartitionToWide<D> wide;
  const auto ab =
      hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce =
      hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab2 = hn::BitCast(wide, ab);
  const auto ce2 = hn::BitCast(wide, ce);
  const auto sums =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab2, ce2)),
              hn::BitCast(d, hn::InterleaveUpper(wide, ab2, ce2)));
  hn::StoreU(SumOfBlocks(d, sums), NarrowTag(), out);
#else
  out[0] = Sum(d, a);
  out[1] = Sum(d, b);
  out[2] = Sum(d, c);
  out[3] = Sum(d, e);
#endif
}

}  // namespace
}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KERNELS_CPU_ROW_VECTORS_H_
