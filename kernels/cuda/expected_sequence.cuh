// The launches of expected_attention; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_EXPECTED_SEQUENCE_CUH_
#define KERNELS_CUDA_EXPECTED_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/entry_lists.h"
#include "kernels/cuda/expected_scores.cuh"
#include "kernels/cuda/expected_scores.h"
#include "kernels/cuda/launch_shapes.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <typename Launcher>
bool RunExpectedScores(const ExpectedParams& params, const RowShape& shape,
                       int32_t longest_list, Launcher& launch) {
  const int64_t num_lists =
      int64_t{params.entries.num_sequences} * params.entries.num_heads;
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(SizeOf(CeilDivide(longest_list, kProductRows), num_lists,
                         kProductThreads, ProductShape<T, kDim>::kSharedBytes),
                  ExpectedLogits<T, kDim>, params) &&
           launch(SizeOf(params.group_size, num_lists, kExpectedStatsThreads,
                         kExpectedStatsBytes),
                  ExpectedStats, params) &&
           launch(SizeOf(RowSplits(longest_list), num_lists, kRowSplitThreads),
                  ExpectedScores<T, kDim>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_EXPECTED_SEQUENCE_CUH_
