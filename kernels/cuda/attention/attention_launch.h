// Launchers of attention and scores, for host code that knows CUDA. Each
// enqueues its kernels on `stream`, checks nothing that its caller has checked,
// and returns the first error of a launch; cudaErrorInvalidValue for a head_dim
// other than 64, 128 and 256. Empty work launches nothing.
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

// Prefix sums of the tiles of all lists, on the device: what a step needs of
// its lengths. One small kernel.
cudaError_t LaunchPlanDecode(const DecodePlanParams& params,
                             cudaStream_t stream);
// How many CTAs of decode attention the current device holds at a time: what
// params.num_ctas should be.
cudaError_t CountDecodeCtas(const RowShape& shape, int32_t group_size,
                            int32_t* num_ctas);
// Attention, then the merge.
cudaError_t LaunchDecodeAttention(const DecodeParams& params,
                                  const RowShape& shape, cudaStream_t stream);
// num_blocks: params.block_offsets[num_sequences], as the host counted it.
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
// The anchor, unless the metric is kNorm, and the comparison.
cudaError_t LaunchKeyScores(const KeyScoreParams& params, const RowShape& shape,
                            cudaStream_t stream);
cudaError_t LaunchExpectedScores(const ExpectedParams& params,
                                 const RowShape& shape, cudaStream_t stream);
cudaError_t LaunchValueNorms(const ValueNormParams& params,
                             const RowShape& shape, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_ATTENTION_LAUNCH_H_
