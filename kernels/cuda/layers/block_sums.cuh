// Sums and maxima over the threads of a block whose size is known at launch.
#ifndef KERNELS_CUDA_LAYERS_BLOCK_SUMS_CUH_
#define KERNELS_CUDA_LAYERS_BLOCK_SUMS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The shared memory of the functions below, bytes: an element for each warp.
inline constexpr uint32_t kBlockSumBytes = simt::kWarpThreads * sizeof(float);

// C. Returns the largest of all lanes' values, in every lane. Skips NaN.
SIMT_DEVICE float WarpMax(float value) {
  for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
    value = fmaxf(value, simt::ShuffleXor(value, mask));
  }
  return value;
}

// Combines the results of the warps of a block. All threads call it.
template <typename Combine>
SIMT_DEVICE float OverWarps(float value, float neutral,
                            const Combine& combine) {
  const uint32_t num_warps = simt::num_threads() / simt::kWarpThreads;
  if (num_warps == 1) return value;
  const auto parts = simt::Shared<float>(0, num_warps);
  if (simt::Lane() == 0) parts.Store(simt::Warp(), value);
  simt::SyncBlock();
  value =
      combine(simt::Lane() < num_warps ? parts.Load(simt::Lane()) : neutral);
  // The next call writes the same memory.
  simt::SyncBlock();
  return value;
}

// Return the sum and the maximum over the block's threads, in every thread. The
// order depends on the number of threads only. All threads call them.
SIMT_DEVICE float BlockSum(float value) {
  return OverWarps(WarpSum(value), 0.0f,
                   [](float part) { return WarpSum(part); });
}
SIMT_DEVICE float BlockMax(float value) {
  return OverWarps(WarpMax(value), -INFINITY,
                   [](float part) { return WarpMax(part); });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_BLOCK_SUMS_CUH_
