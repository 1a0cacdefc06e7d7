// Launchers of layers, for host code that uses CUDA. Each launcher enqueues one
// kernel on `stream`. It does not check its arguments. It returns the result of
// the launch. Empty work launches nothing. `type` is the element type of the
// weights and of the inputs of products.
#ifndef KERNELS_CUDA_LAYERS_LAYER_LAUNCH_H_
#define KERNELS_CUDA_LAYERS_LAYER_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/layers/layer_rows.h"
#include "kernels/cuda/layers/token_draws.h"

namespace blockmgr {

cudaError_t LaunchEmbed(const EmbedParams& params, ElementType type,
                        cudaStream_t stream);
cudaError_t LaunchNormalize(const NormParams& params, ElementType type,
                            cudaStream_t stream);
// `shape` is that of the pool's rows. Returns cudaErrorInvalidValue for a
// head_dim other than 64, 128 and 256.
cudaError_t LaunchPrepareHeads(const HeadParams& params, const RowShape& shape,
                               cudaStream_t stream);
cudaError_t LaunchMergeAttention(const MergeParams& params, ElementType type,
                                 ElementType pool_type, cudaStream_t stream);
cudaError_t LaunchGate(const GateParams& params, ElementType type,
                       cudaStream_t stream);
cudaError_t LaunchMultiply(const ProductParams& params, ElementType type,
                           cudaStream_t stream);
cudaError_t LaunchEditLogits(const EditParams& params, cudaStream_t stream);
cudaError_t LaunchDrawTokens(const DrawParams& params, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_LAYER_LAUNCH_H_
