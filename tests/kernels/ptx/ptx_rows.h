// Operations that do the same to every lane.
#ifndef TESTS_KERNELS_PTX_PTX_ROWS_H_
#define TESTS_KERNELS_PTX_PTX_ROWS_H_

#include <cstdint>

#include "tests/kernels/ptx/ptx_kernel.h"
#include "tests/kernels/ptx/ptx_machine.h"

namespace blockmgr::ptx {

template <typename Out, typename In, auto kFunction>
void Unary(Warp& warp, const Instruction& in, LaneMask mask) {
  const In* a = warp.Row<In>(in.rows[1]);
  Out out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = static_cast<Out>(kFunction(a[lane]));
  }
  warp.Store(in.rows[0], out, mask);
}

template <typename T, auto kFunction>
void Binary(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const T* b = warp.Row<T>(in.rows[2]);
  T out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = static_cast<T>(kFunction(a[lane], b[lane]));
  }
  warp.Store(in.rows[0], out, mask);
}

template <typename T, auto kFunction>
void Ternary(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const T* b = warp.Row<T>(in.rows[2]);
  const T* c = warp.Row<T>(in.rows[3]);
  T out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = static_cast<T>(kFunction(a[lane], b[lane], c[lane]));
  }
  warp.Store(in.rows[0], out, mask);
}

// By an amount of 32 bits.
template <typename T, auto kFunction>
void Shift(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const uint32_t* amount = warp.Row<uint32_t>(in.rows[2]);
  T out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = kFunction(a[lane], amount[lane]);
  }
  warp.Store(in.rows[0], out, mask);
}

template <typename T, auto kFunction>
void Compare(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const T* b = warp.Row<T>(in.rows[2]);
  LaneMask result = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    result |= static_cast<LaneMask>(kFunction(a[lane], b[lane])) << lane;
  }
  warp.SetPredicate(in.rows[0], result, mask);
}

template <typename T>
void SelectRow(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* a = warp.Row<T>(in.rows[1]);
  const T* b = warp.Row<T>(in.rows[2]);
  const LaneMask which = warp.Predicate(in.rows[3]);
  T out[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    out[lane] = (which >> lane & 1u) != 0 ? a[lane] : b[lane];
  }
  warp.Store(in.rows[0], out, mask);
}

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_ROWS_H_
