// Reads rows of K and V in vector code. For files that Highway compiles once
// per instruction set. Such a file #undefs the guard first, so that each
// instruction set gets its own copy.
#ifndef KERNELS_CPU_ROW_VECTORS_H_
#define KERNELS_CPU_ROW_VECTORS_H_

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "blockmgr/base/dtype.h"

// Whether the machine has float16 instructions, which do the same as
// base/dtype.h. Without such instructions Highway rounds towards zero and does
// not handle NaN.
#undef BM_HAS_FLOAT16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define BM_HAS_FLOAT16 1
#else
#define BM_HAS_FLOAT16 0
#endif

// Whether four vectors can be reduced or transposed in blocks of 128 bits. This
// needs a number of blocks that the compiler knows.
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

// Rows of a multiple of 16 elements fill every vector. Other rows have a
// multiple of 4 elements. Neither case has a remainder.
using WideTag = hn::CappedTag<float, 16>;
using NarrowTag = hn::CappedTag<float, 4>;

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const float* row) {
  return hn::LoadU(d, row);
}

// Loads elements of 16 bits, each into the lower half of a lane.
template <class D, class Element>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadBits(D /*d*/,
                                                     const Element* row) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::PromoteTo(d32,
                       hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const hwy::bfloat16_t* row) {
  return hn::BitCast(d, hn::ShiftLeft<16>(LoadBits(d, row)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const hwy::float16_t* row) {
#if BM_HAS_FLOAT16
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), row));
#else
  // FromFloat16 (base/dtype.h), in vectors.
  const hn::RebindToUnsigned<D> d32;
  const auto bits = LoadBits(d, row);
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto scaled = hn::Mul(hn::BitCast(d, shifted), hn::Set(d, 0x1p112f));
  const auto special = hn::Or(shifted, hn::Set(d32, 0x7F800000u));
  const hn::RebindToSigned<D> di32;
  const auto is_special =
      hn::Gt(hn::BitCast(di32, magnitude), hn::Set(di32, 0x7BFF));
  const auto value = hn::IfThenElse(hn::RebindMask(d, is_special),
                                    hn::BitCast(d, special), scaled);
  return hn::Or(hn::BitCast(d, sign), value);
#endif
}

// Returns use(element), where `element` has the C++ type of the elements of
// this dtype.
template <class Use>
HWY_INLINE void ForElements(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::kFloat32:
      return use(float());
    case DType::kBFloat16:
      return use(hwy::bfloat16_t());
    case DType::kFloat16:
      return use(hwy::float16_t());
  }
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
// Returns the sum of the 128-bit blocks of v.
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

// Sets out[0..3] to the sums of the lanes of a, b, c and e.
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
