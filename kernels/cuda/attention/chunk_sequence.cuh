// The launch of chunk attention; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_ATTENTION_CHUNK_SEQUENCE_CUH_
#define KERNELS_CUDA_ATTENTION_CHUNK_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/chunk_kernel.cuh"
#include "kernels/cuda/launch_shapes.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <typename Launcher>
bool RunChunkAttention(const ChunkParams& params, const RowShape& shape,
                       int32_t num_blocks, Launcher& launch) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    const auto size = SizeOf(num_blocks, params.lists.num_heads, kChunkThreads,
                             ChunkShape<T, kDim>::kSharedBytes);
    return params.lists.window > 0
               ? launch(size, kKernel<ChunkAttention<T, kDim, true>>, params)
               : launch(size, kKernel<ChunkAttention<T, kDim, false>>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_CHUNK_SEQUENCE_CUH_
