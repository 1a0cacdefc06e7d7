// Instances and launchers of scores other than a window's attention: pooling,
// tova, h2o's sums, keys, and sizes of projected values.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/scores/entry_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchPoolWindowScores(const PoolParams& params,
                                   cudaStream_t stream) {
  return OnStream(stream, RunPoolWindowScores<CudaLauncher>, params);
}

cudaError_t LaunchTovaScores(const TovaParams& params, cudaStream_t stream) {
  return OnStream(stream, RunTovaScores<CudaLauncher>, params);
}

cudaError_t LaunchAddDecodeAttention(const DecodeSumParams& params,
                                     cudaStream_t stream) {
  return OnStream(stream, RunAddDecodeAttention<CudaLauncher>, params);
}

cudaError_t LaunchFinishH2oScores(const H2oScoreParams& params,
                                  cudaStream_t stream) {
  return OnStream(stream, RunFinishH2oScores<CudaLauncher>, params);
}

cudaError_t LaunchKeyScores(const KeyScoreParams& params, const RowShape& shape,
                            cudaStream_t stream) {
  return OnStream(stream, RunKeyScores<CudaLauncher>, params, shape);
}

cudaError_t LaunchValueNorms(const ValueNormParams& params,
                             const RowShape& shape, cudaStream_t stream) {
  return OnStream(stream, RunValueNorms<CudaLauncher>, params, shape);
}

}  // namespace blockmgr
