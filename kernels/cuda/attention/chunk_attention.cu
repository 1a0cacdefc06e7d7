// Instances and launcher of chunk attention.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/chunk_sequence.cuh"
#include "kernels/cuda/cuda_launcher.cuh"

namespace blockmgr {

cudaError_t LaunchChunkAttention(const ChunkParams& params,
                                 const RowShape& shape, int32_t num_blocks,
                                 cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(
      RunChunkAttention(params, shape, num_blocks, launcher));
}

}  // namespace blockmgr
