// Instances and launchers of the row mover.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/rows/row_mover_launch.h"
#include "kernels/cuda/rows/row_mover_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchAppend(const AppendRows& append, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  return OnStream(stream, RunAppend<CudaLauncher>, append, conversion,
                  max_blocks);
}

cudaError_t LaunchGather(const GatherRows& gather, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  return OnStream(stream, RunGather<CudaLauncher>, gather, conversion,
                  max_blocks);
}

cudaError_t LaunchMove(const MoveRows& move, uint32_t max_blocks,
                       cudaStream_t stream) {
  return OnStream(stream, RunMove<CudaLauncher>, move, max_blocks);
}

cudaError_t LaunchCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                             cudaStream_t stream) {
  return OnStream(stream, RunCopyBlocks<CudaLauncher>, copy, max_blocks);
}

cudaError_t LaunchPackPages(const StagePages& stage, uint32_t max_blocks,
                            cudaStream_t stream) {
  return OnStream(stream, RunPackPages<CudaLauncher>, stage, max_blocks);
}

cudaError_t LaunchUnpackPages(const StagePages& stage, uint32_t max_blocks,
                              cudaStream_t stream) {
  return OnStream(stream, RunUnpackPages<CudaLauncher>, stage, max_blocks);
}

}  // namespace blockmgr
