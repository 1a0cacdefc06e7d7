// The launches of decode attention; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_SEQUENCE_CUH_
#define KERNELS_CUDA_ATTENTION_DECODE_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention/decode_kernels.cuh"
#include "kernels/cuda/attention/decode_plan.cuh"
#include "kernels/cuda/launch_shapes.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <typename Launcher>
bool RunPlanDecode(const DecodePlanParams& params, Launcher& launch) {
  return launch(SizeOf(1, 1, kDecodePlanThreads, kDecodePlanSharedBytes),
                kKernel<PlanDecode>, params);
}

template <typename T, int kDim, int kQTiles, typename Launcher>
bool RunAttention(const DecodeParams& params, Launcher& launch) {
  return launch(SizeOf(params.num_ctas, 1, kDecodeThreads,
                       DecodeShape<T, kDim, kQTiles>::kSharedBytes),
                kKernel<DecodeAttention<T, kDim, kQTiles>>, params);
}

// Query heads get blocks of their own if few lists would leave the device idle.
// If there are many lists, most lists are in one piece, and their blocks have
// nothing to do.
inline LaunchSize MergeDecodeSize(const DecodeParams& params,
                                  int64_t num_lists) {
  constexpr int64_t kManyLists = 1024;
  return SizeOf(CountMergeBlocks(params.max_tiles, num_lists, params.num_ctas,
                                 params.chunk_tiles),
                num_lists < kManyLists ? params.group_size : 1, kDecodeThreads,
                kMergeSharedBytes);
}

template <typename Launcher>
bool RunDecodeAttention(const DecodeParams& params, const RowShape& shape,
                        Launcher& launch) {
  const int64_t num_lists =
      int64_t{params.lists.num_sequences} * params.lists.num_heads;
  if (num_lists == 0) return true;
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    const bool done = params.group_size <= 8
                          ? RunAttention<T, kDim, 1>(params, launch)
                          : RunAttention<T, kDim, 2>(params, launch);
    return done && launch(MergeDecodeSize(params, num_lists),
                          kKernel<MergeDecodeAttention<T, kDim>>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_SEQUENCE_CUH_
