// Instances and launchers of decode attention.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/decode_sequence.cuh"
#include "kernels/cuda/cuda_launcher.cuh"

namespace blockmgr {
namespace {

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
    error = AllowSharedBytes<DecodeAttention<T, kDim, kQTiles>>(kBytes);
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
  cudaError_t error = cudaErrorInvalidValue;
  ForShape(shape, [&](auto instance) {
    using T = typename decltype(instance)::Element;
    constexpr int kDim = decltype(instance)::kDim;
    error = group_size <= 8 ? CountCtas<T, kDim, 1>(num_ctas)
                            : CountCtas<T, kDim, 2>(num_ctas);
    return true;
  });
  return error;
}

cudaError_t LaunchPlanDecode(const DecodePlanParams& params,
                             cudaStream_t stream) {
  return OnStream(stream, RunPlanDecode<CudaLauncher>, params);
}

cudaError_t LaunchDecodeAttention(const DecodeParams& params,
                                  const RowShape& shape, cudaStream_t stream) {
  return OnStream(stream, RunDecodeAttention<CudaLauncher>, params, shape);
}

}  // namespace blockmgr
