// Instances and launchers of scores other than a window's attention: pooling,
// tova, h2o's sums, keys, and sizes of projected values.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/entry_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchPoolWindowScores(const PoolParams& params,
                                   int32_t longest_list, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunPoolWindowScores(params, longest_list, launcher));
}

cudaError_t LaunchTovaScores(const TovaParams& params, int32_t longest_sequence,
                             cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunTovaScores(params, longest_sequence, launcher));
}

cudaError_t LaunchAddDecodeAttention(const DecodeSumParams& params,
                                     cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunAddDecodeAttention(params, launcher));
}

cudaError_t LaunchFinishH2oScores(const H2oScoreParams& params,
                                  int32_t longest_list, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunFinishH2oScores(params, longest_list, launcher));
}

cudaError_t LaunchKeyScores(const KeyScoreParams& params, const RowShape& shape,
                            cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunKeyScores(params, shape, launcher));
}

cudaError_t LaunchValueNorms(const ValueNormParams& params,
                             const RowShape& shape, int32_t longest_list,
                             cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunValueNorms(params, shape, longest_list, launcher));
}

}  // namespace blockmgr
