// Instances and launchers of the row mover.
#include "kernels/cuda/row_mover.cuh"

#include "kernels/cuda/row_mover_launch.h"

namespace blockmgr {
namespace {

template <RowConversion kConversion, typename Source, typename Destination>
cudaError_t LaunchRows(const RowMoverParams<Source, Destination>& params,
                       uint32_t max_blocks, cudaStream_t stream) {
  if (params.rows.count <= 0) return cudaSuccess;
  const uint32_t blocks = RowMoverBlocks(params.rows.count, max_blocks);
  RowMover<kConversion, Source, Destination>
      <<<blocks, kRowMoverThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchAppend(const AppendRows& append, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  const auto params = MakeParams(append);
  switch (conversion) {
    case RowConversion::kNone:
      return LaunchRows<RowConversion::kNone>(params, max_blocks, stream);
    case RowConversion::kFloatToBFloat16:
      return LaunchRows<RowConversion::kFloatToBFloat16>(params, max_blocks,
                                                         stream);
    case RowConversion::kFloatToHalf:
      return LaunchRows<RowConversion::kFloatToHalf>(params, max_blocks,
                                                     stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchGather(const GatherRows& gather, RowConversion conversion,
                         uint32_t max_blocks, cudaStream_t stream) {
  switch (conversion) {
    case RowConversion::kNone:
      return LaunchRows<RowConversion::kNone>(MakeParams(gather, 1), max_blocks,
                                              stream);
    case RowConversion::kBFloat16ToFloat:
      return LaunchRows<RowConversion::kBFloat16ToFloat>(MakeParams(gather, 2),
                                                         max_blocks, stream);
    case RowConversion::kHalfToFloat:
      return LaunchRows<RowConversion::kHalfToFloat>(MakeParams(gather, 2),
                                                     max_blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchMove(const MoveRows& move, uint32_t max_blocks,
                       cudaStream_t stream) {
  return LaunchRows<RowConversion::kNone>(MakeParams(move), max_blocks, stream);
}

cudaError_t LaunchCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                             cudaStream_t stream) {
  return LaunchRows<RowConversion::kNone>(MakeParams(copy), max_blocks, stream);
}

cudaError_t LaunchPackPages(const StagePages& stage, uint32_t max_blocks,
                            cudaStream_t stream) {
  return LaunchRows<RowConversion::kNone>(MakePackParams(stage), max_blocks,
                                          stream);
}

cudaError_t LaunchUnpackPages(const StagePages& stage, uint32_t max_blocks,
                              cudaStream_t stream) {
  return LaunchRows<RowConversion::kNone>(MakeUnpackParams(stage), max_blocks,
                                          stream);
}

}  // namespace blockmgr
