// Launchers of the selection, and of the index that it reads, for host code
// that knows CUDA. Each enqueues its kernels on `stream`, checks nothing that
// its caller has checked, and returns the first error of a launch.
#ifndef KERNELS_CUDA_SELECT_LAUNCH_H_
#define KERNELS_CUDA_SELECT_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/entry_index.h"
#include "kernels/cuda/select.h"

namespace blockmgr {

// longest_tail: tokens. At most 65,535 lists of a layer, and as many layers.
cudaError_t LaunchIndexEntries(const EntryIndexParams& params,
                               int32_t longest_tail, cudaStream_t stream);
cudaError_t LaunchSelect(const SelectProblem& problem, cudaStream_t stream);
cudaError_t LaunchSelectMoves(const SelectMoves& moves, cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_LAUNCH_H_
