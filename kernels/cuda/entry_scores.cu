// Instances and launchers of scores other than a window's attention: pooling,
// h2o's sums, keys, and sizes of projected values.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/key_scores.cuh"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/pooled_scores.cuh"
#include "kernels/cuda/value_norm_scores.cuh"

namespace blockmgr {
namespace {

int64_t NumLists(const EntryLists& entries) {
  return int64_t{entries.num_sequences} * entries.num_heads;
}

}  // namespace

cudaError_t LaunchPoolWindowScores(const PoolParams& params,
                                   int32_t longest_list, cudaStream_t stream) {
  LaunchSize size;
  size.grid =
      GridOf(CeilDivide(longest_list, kPoolThreads), NumLists(params.entries));
  size.threads = kPoolThreads;
  size.shared_bytes = kPoolSharedBytes;
  return Enqueue(PoolWindowScores, params, size, stream);
}

cudaError_t LaunchAddDecodeAttention(const DecodeSumParams& params,
                                     int32_t longest_list,
                                     cudaStream_t stream) {
  LaunchSize size;
  size.grid = GridOf(longest_list, int64_t{params.lists.num_sequences} *
                                       params.lists.num_heads);
  size.threads = kDecodeTileRanks;
  return Enqueue(AddDecodeAttention, params, size, stream);
}

cudaError_t LaunchFinishH2oScores(const H2oScoreParams& params,
                                  int32_t longest_list, cudaStream_t stream) {
  LaunchSize size;
  size.grid =
      GridOf(CeilDivide(longest_list, kPoolThreads), NumLists(params.entries));
  size.threads = kPoolThreads;
  return Enqueue(FinishH2oScores, params, size, stream);
}

cudaError_t LaunchKeyScores(const KeyScoreParams& params, const RowShape& shape,
                            cudaStream_t stream) {
  const int64_t num_lists = NumLists(params.entries);
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    LaunchSize size;
    size.threads = kKeyThreads;
    if (params.metric != KeyMetric::kNorm) {
      size.grid = GridOf(params.num_splits, num_lists);
      size.shared_bytes = KeyLanes<T, kDim>::kSharedBytes;
      cudaError_t error = Enqueue(SumKeys<T, kDim>, params, size, stream);
      if (error != cudaSuccess) return error;
      size.grid = GridOf(num_lists);
      error = Enqueue(FinishAnchors<kDim>, params, size, stream);
      if (error != cudaSuccess) return error;
    }
    size.grid = GridOf(params.num_splits, num_lists);
    size.shared_bytes = 0;
    return Enqueue(CompareKeys<T, kDim>, params, size, stream);
  });
}

cudaError_t LaunchValueNorms(const ValueNormParams& params,
                             const RowShape& shape, int32_t longest_list,
                             cudaStream_t stream) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    LaunchSize size;
    size.grid =
        GridOf(CeilDivide(longest_list, kNormRows), NumLists(params.entries));
    size.threads = kNormThreads;
    size.shared_bytes = NormShape<T, kDim>::kSharedBytes;
    return Enqueue(ValueNorms<T, kDim>, params, size, stream);
  });
}

}  // namespace blockmgr
