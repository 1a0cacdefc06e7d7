// Instances and launcher of expected_attention.
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/scores/expected_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchExpectedScores(const ExpectedParams& params,
                                 const RowShape& shape, cudaStream_t stream) {
  return OnStream(stream, RunExpectedScores<CudaLauncher>, params, shape);
}

}  // namespace blockmgr
