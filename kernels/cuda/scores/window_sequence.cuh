// The launches of the attention of windows of queries; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_SCORES_WINDOW_SEQUENCE_CUH_
#define KERNELS_CUDA_SCORES_WINDOW_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/scores/window_kernels.cuh"
#include "kernels/cuda/scores/window_scores.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// One warp per row, unless this makes very many blocks.
inline LaunchSize MergeStatsSize(int64_t num_lists,
                                 const WindowParams& params) {
  constexpr int64_t kManyBlocks = 4096;
  const int64_t most = CeilDivide(int64_t{params.window} * params.group_size,
                                  kWindowThreads / 32);
  const int64_t shares = CeilDivide(kManyBlocks, num_lists < 1 ? 1 : num_lists);
  return SizeOf(num_lists, shares < most ? shares : most, kWindowThreads);
}

template <typename Launcher>
bool RunWindowStats(const WindowParams& params, const RowShape& shape,
                    Launcher& launch) {
  const EntryLists& entries = params.entries;
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    using Shape = WindowShape<T, kDim>;
    const int64_t num_blocks =
        int64_t{entries.window_splits.count} * Shape::RowBlocks(params);
    return launch(SizeOf(num_blocks, 1, kWindowThreads, Shape::kSharedBytes),
                  kKernel<WindowStats<T, kDim>>, params) &&
           launch(MergeStatsSize(CountLists(entries), params),
                  kKernel<MergeWindowStats>, params);
  });
}

template <typename Launcher>
bool RunWindowColumns(const WindowParams& params, const RowShape& shape,
                      Launcher& launch) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(SizeOf(params.entries.window_splits.count, 1, kWindowThreads,
                         WindowShape<T, kDim>::kSharedBytes),
                  kKernel<WindowColumns<T, kDim>>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_SEQUENCE_CUH_
