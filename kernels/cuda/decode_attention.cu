// Instances and launchers of decode attention.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/decode_kernels.cuh"
#include "kernels/cuda/decode_plan.cuh"
#include "kernels/cuda/launch_shapes.cuh"

namespace blockmgr {
namespace {

template <typename T, int kDim, int kQTiles>
cudaError_t EnqueueAttention(const DecodeParams& params, cudaStream_t stream) {
  LaunchSize size;
  size.grid = GridOf(params.num_ctas);
  size.threads = kDecodeThreads;
  size.shared_bytes = DecodeShape<T, kDim, kQTiles>::kSharedBytes;
  return Enqueue(DecodeAttention<T, kDim, kQTiles>, params, size, stream);
}

template <typename T, int kDim, int kQTiles>
cudaError_t CountCtas(int32_t* num_ctas) {
  int device = 0;
  int num_processors = 0;
  int per_processor = 0;
  const auto kernel = DecodeAttention<T, kDim, kQTiles>;
  constexpr size_t kBytes = DecodeShape<T, kDim, kQTiles>::kSharedBytes;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_processors,
                                   cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kBytes));
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &per_processor, kernel, kDecodeThreads, kBytes);
  }
  *num_ctas = num_processors * per_processor;
  return error;
}

}  // namespace

cudaError_t CountDecodeCtas(const RowShape& shape, int32_t group_size,
                            int32_t* num_ctas) {
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    return group_size <= 8 ? CountCtas<T, kDim, 1>(num_ctas)
                           : CountCtas<T, kDim, 2>(num_ctas);
  });
}

cudaError_t LaunchPlanDecode(const DecodePlanParams& params,
                             cudaStream_t stream) {
  LaunchSize size;
  size.grid = GridOf(1);
  size.threads = kDecodePlanThreads;
  size.shared_bytes = kDecodePlanSharedBytes;
  return Enqueue(PlanDecode, params, size, stream);
}

cudaError_t LaunchDecodeAttention(const DecodeParams& params,
                                  const RowShape& shape, cudaStream_t stream) {
  const int64_t num_lists =
      int64_t{params.lists.num_sequences} * params.lists.num_heads;
  if (num_lists == 0) return cudaSuccess;
  return ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    const cudaError_t error =
        params.group_size <= 8 ? EnqueueAttention<T, kDim, 1>(params, stream)
                               : EnqueueAttention<T, kDim, 2>(params, stream);
    if (error != cudaSuccess) return error;
    LaunchSize size;
    size.grid = GridOf(num_lists);
    size.threads = kDecodeThreads;
    return Enqueue(MergeDecodeAttention<T, kDim>, params, size, stream);
  });
}

}  // namespace blockmgr
