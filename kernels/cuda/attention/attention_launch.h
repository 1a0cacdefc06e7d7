// Launchers of attention and scores, for host code that uses CUDA. Each
// launcher enqueues its kernels on `stream`. It does not check its arguments.
// It returns the first error of a launch, or cudaErrorInvalidValue for a
// head_dim other than 64, 128 and 256. Empty work launches nothing.
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_LAUNCH_H_
#define KERNELS_CUDA_ATTENTION_ATTENTION_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/scores/window_scores.h"

namespace blockmgr {

// Computes the prefix sums of the tiles of all lists on the device, from the
// lengths there. One small kernel.
cudaError_t LaunchPlanDecode(const DecodePlanParams& params,
                             cudaStream_t stream);
// Sets *num_ctas to the number of decode attention CTAs that the current device
// holds at a time. This is the right value of params.num_ctas.
cudaError_t CountDecodeCtas(const RowShape& shape, int32_t group_size,
                            int32_t* num_ctas);
// Launches the attention, then the merge.
cudaError_t LaunchDecodeAttention(const DecodeParams& params,
                                  const RowShape& shape, cudaStream_t stream);
// num_blocks is params.block_offsets[num_sequences], as the host counted it.
cudaError_t LaunchChunkAttention(const ChunkParams& params,
                                 const RowShape& shape, int32_t num_blocks,
                                 cudaStream_t stream);
cudaError_t LaunchWindowStats(const WindowParams& params, const RowShape& shape,
                              cudaStream_t stream);
cudaError_t LaunchWindowColumns(const WindowParams& params,
                                const RowShape& shape, cudaStream_t stream);
cudaError_t LaunchPoolWindowScores(const PoolParams& params,
                                   cudaStream_t stream);
cudaError_t LaunchTovaScores(const TovaParams& params, cudaStream_t stream);
cudaError_t LaunchAddDecodeAttention(const DecodeSumParams& params,
                                     cudaStream_t stream);
cudaError_t LaunchFinishH2oScores(const H2oScoreParams& params,
                                  cudaStream_t stream);
// Computes the anchor, unless the metric is kNorm, then the comparison.
cudaError_t LaunchKeyScores(const KeyScoreParams& params, const RowShape& shape,
                            cudaStream_t stream);
cudaError_t LaunchExpectedScores(const ExpectedParams& params,
                                 const RowShape& shape, cudaStream_t stream);
cudaError_t LaunchValueNorms(const ValueNormParams& params,
                             const RowShape& shape, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_ATTENTION_LAUNCH_H_
