// The launches of expected_attention; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_SCORES_EXPECTED_SEQUENCE_CUH_
#define KERNELS_CUDA_SCORES_EXPECTED_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/expected_scores.cuh"
#include "kernels/cuda/scores/expected_scores.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <typename Launcher>
bool RunExpectedScores(const ExpectedParams& params, const RowShape& shape,
                       Launcher& launch) {
  const EntryLists& entries = params.entries;
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(SizeOf(entries.row_splits.count, 1, kProductThreads,
                         ProductShape<T, kDim>::kSharedBytes),
                  kKernel<ExpectedLogits<T, kDim>>, params) &&
           launch(SizeOf(int64_t{CountLists(entries)} * params.group_size, 1,
                         kExpectedStatsThreads, kExpectedStatsBytes),
                  kKernel<ExpectedStats>, params) &&
           launch(SizeOf(entries.row_splits.count, 1, kRowSplitThreads),
                  kKernel<ExpectedScores<T, kDim>>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_EXPECTED_SEQUENCE_CUH_
