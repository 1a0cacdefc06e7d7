// Instances and launchers of the selection.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/select_launch.h"
#include "kernels/cuda/select_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunSelect(problem, launcher));
}

cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunSelectMoves(moves, launcher));
}

}  // namespace blockmgr
