// Instances and launcher of chunk attention.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/chunk_kernel.cuh"
#include "kernels/cuda/launch_shapes.cuh"

namespace blockmgr {

cudaError_t LaunchChunkAttention(const ChunkParams& params,
                                 const RowShape& shape, int32_t num_blocks,
                                 cudaStream_t stream) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    LaunchSize size;
    size.grid = GridOf(num_blocks, params.lists.num_heads);
    size.threads = kChunkThreads;
    size.shared_bytes = ChunkShape<T, kDim>::kSharedBytes;
    return Enqueue(ChunkAttention<T, kDim>, params, size, stream);
  });
}

}  // namespace blockmgr
