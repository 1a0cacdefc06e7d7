// Instances and launchers of the selection, and of the index that it reads.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/selection/select_launch.h"
#include "kernels/cuda/selection/select_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchIndexEntries(const EntryIndexParams& params,
                               int32_t longest_tail, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunIndexEntries(params, longest_tail, launcher));
}

cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunSelect(problem, launcher));
}

cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunSelectMoves(moves, launcher));
}

}  // namespace blockmgr
