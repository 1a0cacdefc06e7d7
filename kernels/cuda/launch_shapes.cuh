// Maps run-time shapes to instances of kernels, and computes the sizes of
// grids. The sequences of launches (*_sequence.cuh) use this header.
//
// A sequence is host code that calls launch(size, kKernel<..>, params) for each
// kernel of an operation, in order. It stops at the first launch that returns
// false. The launches of nvcc and of the emulator go through the same sequence,
// so that a wrong grid is found without a GPU. C++17.
#ifndef KERNELS_CUDA_LAUNCH_SHAPES_CUH_
#define KERNELS_CUDA_LAUNCH_SHAPES_CUH_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/simt_types.h"

namespace blockmgr {

// The size of a grid. If x, y or z is 0, a launcher does nothing and succeeds.
struct LaunchSize {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t threads = 0;  // per block
  uint32_t shared_bytes = 0;
  uint32_t z = 1;
};

// A kernel as a type, so that a launcher has variables per kernel.
template <auto kKernelFunction>
struct Kernel {};
template <auto kKernelFunction>
inline constexpr Kernel<kKernelFunction> kKernel = {};

// Counts are signed in all other code.
inline LaunchSize SizeOf(int64_t x, int64_t y, int64_t threads,
                         int64_t shared_bytes = 0, int64_t z = 1) {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y),
          static_cast<uint32_t>(threads), static_cast<uint32_t>(shared_bytes),
          static_cast<uint32_t>(z)};
}
inline int64_t CeilDivide(int64_t n, int64_t by) { return (n + by - 1) / by; }

template <typename T, int kDimension>
struct Instance {
  using Element = T;
  static constexpr int kDim = kDimension;
};

template <typename T, typename Run>
bool ForHeadDim(int32_t head_dim, const Run& run) {
  switch (head_dim) {
    case 64:
      return run(Instance<T, 64>());
    case 128:
      return run(Instance<T, 128>());
    case 256:
      return run(Instance<T, 256>());
    default:
      return false;
  }
}

// Returns run(Instance<element type, head_dim>()), or false for a shape that
// has no instances.
template <typename Run>
bool ForShape(const RowShape& shape, const Run& run) {
  switch (shape.type) {
    case ElementType::kBFloat16:
      return ForHeadDim<simt::BFloat16>(shape.head_dim, run);
    case ElementType::kHalf:
      return ForHeadDim<simt::Half>(shape.head_dim, run);
  }
  return false;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAUNCH_SHAPES_CUH_
