// Launchers of the selection, for host code that knows CUDA. Each enqueues its
// kernels on `stream`, checks nothing that its caller has checked, and returns
// the first error of a launch.
#ifndef KERNELS_CUDA_SELECT_LAUNCH_H_
#define KERNELS_CUDA_SELECT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/select.h"

namespace blockmgr {

cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream);
cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_LAUNCH_H_
