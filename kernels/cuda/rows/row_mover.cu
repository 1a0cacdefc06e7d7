// Instances and launchers of the row mover.
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/rows/row_mover_launch.h"
#include "kernels/cuda/rows/row_mover_sequence.cuh"

namespace blockmgr {

cudaError_t LaunchAppend(const AppendRows& append, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunAppend(append, conversion, max_blocks, launcher));
}

cudaError_t LaunchGather(const GatherRows& gather, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunGather(gather, conversion, max_blocks, launcher));
}

cudaError_t LaunchMove(const MoveRows& move, uint32_t max_blocks,
                       cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunMove(move, max_blocks, launcher));
}

cudaError_t LaunchCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                             cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunCopyBlocks(copy, max_blocks, launcher));
}

cudaError_t LaunchPackPages(const StagePages& stage, uint32_t max_blocks,
                            cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunPackPages(stage, max_blocks, launcher));
}

cudaError_t LaunchUnpackPages(const StagePages& stage, uint32_t max_blocks,
                              cudaStream_t stream) {
  CudaLauncher launcher(stream);
  return launcher.Result(RunUnpackPages(stage, max_blocks, launcher));
}

}  // namespace blockmgr
