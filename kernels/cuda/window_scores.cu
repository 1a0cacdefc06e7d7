// Instances and launchers of the attention that windows of queries pay.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/window_kernels.cuh"

namespace blockmgr {
namespace {

int64_t NumLists(const EntryLists& entries) {
  return int64_t{entries.num_sequences} * entries.num_heads;
}

}  // namespace

cudaError_t LaunchWindowStats(const WindowParams& params, const RowShape& shape,
                              cudaStream_t stream) {
  const int64_t num_lists = NumLists(params.entries);
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    using Shape = WindowShape<T, kDim>;
    LaunchSize size;
    size.grid = GridOf(params.num_splits,
                       CeilDivide(WindowRows(params.group_size, params.window),
                                  16 * Shape::kBlockMTiles),
                       num_lists);
    size.threads = kWindowThreads;
    size.shared_bytes = Shape::kSharedBytes;
    const cudaError_t error =
        Enqueue(WindowStats<T, kDim>, params, size, stream);
    if (error != cudaSuccess) return error;
    size.grid = GridOf(num_lists);
    size.shared_bytes = 0;
    return Enqueue(MergeWindowStats, params, size, stream);
  });
}

cudaError_t LaunchWindowColumns(const WindowParams& params,
                                const RowShape& shape, cudaStream_t stream) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    LaunchSize size;
    size.grid = GridOf(params.num_splits, 1, NumLists(params.entries));
    size.threads = kWindowThreads;
    size.shared_bytes = WindowShape<T, kDim>::kSharedBytes;
    return Enqueue(WindowColumns<T, kDim>, params, size, stream);
  });
}

}  // namespace blockmgr
