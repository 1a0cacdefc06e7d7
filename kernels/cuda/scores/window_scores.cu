// Instances and launchers of the attention that windows of queries pay.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/scores/window_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchWindowStats(const WindowParams& params, const RowShape& shape,
                              cudaStream_t stream) {
  return OnStream(stream, RunWindowStats<CudaLauncher>, params, shape);
}

cudaError_t LaunchWindowColumns(const WindowParams& params,
                                const RowShape& shape, cudaStream_t stream) {
  return OnStream(stream, RunWindowColumns<CudaLauncher>, params, shape);
}

}  // namespace blockmgr
