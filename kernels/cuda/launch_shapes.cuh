// From run-time shapes to instances of kernels, for the launchers (.cu only).
#ifndef KERNELS_CUDA_LAUNCH_SHAPES_CUH_
#define KERNELS_CUDA_LAUNCH_SHAPES_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/simt_types.h"

namespace blockmgr {

template <typename T, int kDimension>
struct Instance {
  using Element = T;
  static constexpr int kDim = kDimension;
};

template <typename T, typename Launch>
cudaError_t ForHeadDim(int32_t head_dim, const Launch& launch) {
  switch (head_dim) {
    case 64:
      return launch(Instance<T, 64>());
    case 128:
      return launch(Instance<T, 128>());
    case 256:
      return launch(Instance<T, 256>());
    default:
      return cudaErrorInvalidValue;
  }
}

// Calls launch(Instance<element type, head_dim>()).
template <typename Launch>
cudaError_t ForShape(const RowShape& shape, const Launch& launch) {
  return shape.type == ElementType::kBFloat16
             ? ForHeadDim<simt::BFloat16>(shape.head_dim, launch)
             : ForHeadDim<simt::Half>(shape.head_dim, launch);
}

struct LaunchSize {
  dim3 grid;
  int32_t threads = 0;
  size_t shared_bytes = 0;
};

// Enqueues a kernel, with leave to use more shared memory than 48 KiB.
template <typename Params>
cudaError_t Enqueue(void (*kernel)(Params), const Params& params,
                    const LaunchSize& size, cudaStream_t stream) {
  if (size.grid.x == 0 || size.grid.y == 0 || size.grid.z == 0) {
    return cudaSuccess;
  }
  if (size.shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(size.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  kernel<<<size.grid, static_cast<unsigned>(size.threads), size.shared_bytes,
           stream>>>(params);
  return cudaGetLastError();
}

// Grids count in unsigned numbers.
inline dim3 GridOf(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y),
              static_cast<unsigned>(z));
}
inline int64_t CeilDivide(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAUNCH_SHAPES_CUH_
