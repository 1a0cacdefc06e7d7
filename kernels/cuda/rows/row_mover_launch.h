// Launchers of the row mover, for host code that uses CUDA. Each launcher
// enqueues one kernel on `stream` (LaunchMove with staging: two kernels). It
// does not check its arguments. It returns the result of the launch. An empty
// operation launches nothing.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_LAUNCH_H_
#define KERNELS_CUDA_ROWS_ROW_MOVER_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {

// max_blocks is the number of thread blocks that share the work, usually
// kRowBlocksPerProcessor times the device's multiprocessors. REQUIRES: the
// conversion fits the operation.
cudaError_t LaunchAppend(const AppendRows& append, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream);
cudaError_t LaunchGather(const GatherRows& gather, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream);
cudaError_t LaunchMove(const MoveRows& move, uint32_t max_blocks,
                       cudaStream_t stream);
cudaError_t LaunchCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                             cudaStream_t stream);
cudaError_t LaunchPackPages(const StagePages& stage, uint32_t max_blocks,
                            cudaStream_t stream);
cudaError_t LaunchUnpackPages(const StagePages& stage, uint32_t max_blocks,
                              cudaStream_t stream);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_LAUNCH_H_
