// The launches of all scores except the attention of a window; see
// launch_shapes.cuh.
#ifndef KERNELS_CUDA_SCORES_ENTRY_SEQUENCE_CUH_
#define KERNELS_CUDA_SCORES_ENTRY_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/key_medians.cuh"
#include "kernels/cuda/scores/key_scores.cuh"
#include "kernels/cuda/scores/pooled_scores.cuh"
#include "kernels/cuda/scores/tova_scores.cuh"
#include "kernels/cuda/scores/value_norm_scores.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

// A block for every piece of a list.
inline LaunchSize RowSplitsSize(const EntryLists& entries, int64_t threads,
                                int64_t shared_bytes = 0) {
  return SizeOf(entries.row_splits.count, 1, threads, shared_bytes);
}

template <typename Launcher>
bool RunPoolWindowScores(const PoolParams& params, Launcher& launch) {
  return launch(RowSplitsSize(params.entries, kPoolThreads, kPoolSharedBytes),
                kKernel<PoolWindowScores>, params);
}

template <typename Launcher>
bool RunTovaScores(const TovaParams& params, Launcher& launch) {
  return launch(SizeOf(params.tiles.count, 1, kTovaThreads,
                       TovaSharedBytes(params.entries.num_heads)),
                kKernel<TovaScores>, params);
}

template <typename Launcher>
bool RunAddDecodeAttention(const DecodeSumParams& params, Launcher& launch) {
  if (params.lists.num_sequences == 0) return true;
  // Launched also without room for a tile, because this kernel reports the
  // error.
  const int32_t num_blocks = params.max_tiles > 0 ? params.max_tiles : 1;
  return launch(SizeOf(num_blocks, 1, kDecodeTileRanks),
                kKernel<AddDecodeAttention>, params);
}

template <typename Launcher>
bool RunFinishH2oScores(const H2oScoreParams& params, Launcher& launch) {
  return launch(RowSplitsSize(params.entries, kPoolThreads),
                kKernel<FinishH2oScores>, params);
}

// The input of FinishAnchors.
template <typename T, int kDim, typename Launcher>
bool RunKeyAnchors(const KeyScoreParams& params, Launcher& launch) {
  const EntryLists& entries = params.entries;
  if (params.anchor != KeyAnchor::kMedian) {
    return launch(
        RowSplitsSize(entries, kRowSplitThreads, kSumSharedBytes<kDim>),
        kKernel<SumKeys<T, kDim>>, params);
  }
  return launch(RowSplitsSize(entries, kRowSplitThreads),
                kKernel<MeasureKeys<T, kDim>>, params) &&
         launch(SizeOf(int64_t{CountLists(entries)} * (kDim / kChunk), 1,
                       kMedianThreads, kMedianSharedBytes),
                kKernel<FindMedians<T, kDim>>, params);
}

template <typename T, int kDim, typename Launcher>
bool RunCompareKeys(const KeyScoreParams& params, Launcher& launch) {
  const auto run = [&](auto kernel) {
    return launch(RowSplitsSize(params.entries, kRowSplitThreads), kernel,
                  params);
  };
  switch (params.metric) {
    case KeyMetric::kCosine:
      return run(kKernel<CompareKeys<T, kDim, KeyMetric::kCosine>>);
    case KeyMetric::kDot:
      return run(kKernel<CompareKeys<T, kDim, KeyMetric::kDot>>);
    case KeyMetric::kEuclidean:
      return run(kKernel<CompareKeys<T, kDim, KeyMetric::kEuclidean>>);
    case KeyMetric::kNorm:
      return run(kKernel<CompareKeys<T, kDim, KeyMetric::kNorm>>);
  }
  return false;
}

template <typename Launcher>
bool RunKeyScores(const KeyScoreParams& params, const RowShape& shape,
                  Launcher& launch) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    if (params.metric != KeyMetric::kNorm) {
      const bool done = RunKeyAnchors<T, kDim>(params, launch) &&
                        launch(SizeOf(CountLists(params.entries), 1,
                                      kAnchorThreads, kAnchorSharedBytes),
                               kKernel<FinishAnchors<kDim>>, params);
      if (!done) return false;
    }
    return RunCompareKeys<T, kDim>(params, launch);
  });
}

template <typename Launcher>
bool RunValueNorms(const ValueNormParams& params, const RowShape& shape,
                   Launcher& launch) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(RowSplitsSize(params.entries, kProductThreads,
                                ProductShape<T, kDim>::kSharedBytes),
                  kKernel<ValueNorms<T, kDim>>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ENTRY_SEQUENCE_CUH_
