// Instances and launchers of layers.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/layers/layer_launch.h"
#include "kernels/cuda/layers/layer_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchEmbed(const EmbedParams& params, ElementType type,
                        cudaStream_t stream) {
  return OnStream(stream, RunEmbed<CudaLauncher>, params, type);
}

cudaError_t LaunchNormalize(const NormParams& params, ElementType type,
                            cudaStream_t stream) {
  return OnStream(stream, RunNormalize<CudaLauncher>, params, type);
}

cudaError_t LaunchPrepareHeads(const HeadParams& params, const RowShape& shape,
                               cudaStream_t stream) {
  return OnStream(stream, RunPrepareHeads<CudaLauncher>, params, shape);
}

cudaError_t LaunchMergeAttention(const MergeParams& params, ElementType type,
                                 ElementType pool_type, cudaStream_t stream) {
  return OnStream(stream, RunMergeAttention<CudaLauncher>, params, type,
                  pool_type);
}

cudaError_t LaunchGate(const GateParams& params, ElementType type,
                       cudaStream_t stream) {
  return OnStream(stream, RunGate<CudaLauncher>, params, type);
}

cudaError_t LaunchMultiply(const ProductParams& params, ElementType type,
                           cudaStream_t stream) {
  return OnStream(stream, RunMultiply<CudaLauncher>, params, type);
}

cudaError_t LaunchEditLogits(const EditParams& params, cudaStream_t stream) {
  return OnStream(stream, RunEditLogits<CudaLauncher>, params);
}

cudaError_t LaunchDrawTokens(const DrawParams& params, cudaStream_t stream) {
  return OnStream(stream, RunDrawTokens<CudaLauncher>, params);
}

}  // namespace blockmgr
