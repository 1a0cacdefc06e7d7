// The launches of scores other than a window's attention; see
// launch_shapes.cuh.
#ifndef KERNELS_CUDA_ENTRY_SEQUENCE_CUH_
#define KERNELS_CUDA_ENTRY_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/entry_lists.h"
#include "kernels/cuda/key_medians.cuh"
#include "kernels/cuda/key_scores.cuh"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/pooled_scores.cuh"
#include "kernels/cuda/tova_scores.cuh"
#include "kernels/cuda/value_norm_scores.cuh"

namespace blockmgr {
inline namespace SIMT_SPACE {

inline int64_t NumLists(const EntryLists& entries) {
  return int64_t{entries.num_sequences} * entries.num_heads;
}

// longest_list: entries.
template <typename Launcher>
bool RunPoolWindowScores(const PoolParams& params, int32_t longest_list,
                         Launcher& launch) {
  return launch(
      SizeOf(CeilDivide(longest_list, kPoolThreads), NumLists(params.entries),
             kPoolThreads, kPoolSharedBytes),
      PoolWindowScores, params);
}

// longest_sequence: tokens.
template <typename Launcher>
bool RunTovaScores(const TovaParams& params, int32_t longest_sequence,
                   Launcher& launch) {
  return launch(SizeOf(CeilDivide(longest_sequence, kTovaThreads),
                       params.entries.num_sequences, kTovaThreads,
                       TovaSharedBytes(params.entries.num_heads)),
                TovaScores, params);
}

template <typename Launcher>
bool RunAddDecodeAttention(const DecodeSumParams& params, Launcher& launch) {
  return launch(SizeOf(params.max_tiles, 1, kDecodeTileRanks),
                AddDecodeAttention, params);
}

template <typename Launcher>
bool RunFinishH2oScores(const H2oScoreParams& params, int32_t longest_list,
                        Launcher& launch) {
  return launch(SizeOf(CeilDivide(longest_list, kPoolThreads),
                       NumLists(params.entries), kPoolThreads),
                FinishH2oScores, params);
}

// What FinishAnchors reads.
template <typename T, int kDim, typename Launcher>
bool RunKeyAnchors(const KeyScoreParams& params, int64_t num_lists,
                   Launcher& launch) {
  if (params.anchor != KeyAnchor::kMedian) {
    return launch(SizeOf(params.num_splits, num_lists, kRowSplitThreads,
                         kSumSharedBytes<kDim>),
                  SumKeys<T, kDim>, params);
  }
  return launch(SizeOf(params.num_splits, num_lists, kRowSplitThreads),
                MeasureKeys<T, kDim>, params) &&
         launch(SizeOf(kDim / kChunk, num_lists, kMedianThreads,
                       kMedianSharedBytes),
                FindMedians<T, kDim>, params);
}

template <typename T, int kDim, typename Launcher>
bool RunCompareKeys(const KeyScoreParams& params, int64_t num_lists,
                    Launcher& launch) {
  const auto run = [&](auto kernel) {
    return launch(SizeOf(params.num_splits, num_lists, kRowSplitThreads),
                  kernel, params);
  };
  switch (params.metric) {
    case KeyMetric::kCosine:
      return run(CompareKeys<T, kDim, KeyMetric::kCosine>);
    case KeyMetric::kDot:
      return run(CompareKeys<T, kDim, KeyMetric::kDot>);
    case KeyMetric::kEuclidean:
      return run(CompareKeys<T, kDim, KeyMetric::kEuclidean>);
    case KeyMetric::kNorm:
      return run(CompareKeys<T, kDim, KeyMetric::kNorm>);
  }
  return false;
}

template <typename Launcher>
bool RunKeyScores(const KeyScoreParams& params, const RowShape& shape,
                  Launcher& launch) {
  const int64_t num_lists = NumLists(params.entries);
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    if (params.metric != KeyMetric::kNorm) {
      const bool done =
          RunKeyAnchors<T, kDim>(params, num_lists, launch) &&
          launch(SizeOf(num_lists, 1, kAnchorThreads, kAnchorSharedBytes),
                 FinishAnchors<kDim>, params);
      if (!done) return false;
    }
    return RunCompareKeys<T, kDim>(params, num_lists, launch);
  });
}

template <typename Launcher>
bool RunValueNorms(const ValueNormParams& params, const RowShape& shape,
                   int32_t longest_list, Launcher& launch) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return launch(
        SizeOf(CeilDivide(longest_list, kProductRows), NumLists(params.entries),
               kProductThreads, ProductShape<T, kDim>::kSharedBytes),
        ValueNorms<T, kDim>, params);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ENTRY_SEQUENCE_CUH_
