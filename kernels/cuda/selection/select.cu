// Instances and launchers of the selection, and of the index that it reads.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/selection/select_launch.h"
#include "kernels/cuda/selection/select_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchIndexEntries(const EntryIndexParams& params,
                               int32_t longest_tail, cudaStream_t stream) {
  return OnStream(stream, RunIndexEntries<CudaLauncher>, params, longest_tail);
}

cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream) {
  return OnStream(stream, RunSelect<CudaLauncher>, problem);
}

cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream) {
  return OnStream(stream, RunSelectMoves<CudaLauncher>, moves);
}

}  // namespace blockmgr
