// The launches of the row mover; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_
#define KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_

#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/rows/row_mover.cuh"
#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// max_blocks: as in row_mover_launch.h.
template <RowConversion kConversion, typename Source, typename Destination,
          typename Launcher>
bool RunRows(const RowMoverParams<Source, Destination>& params,
             uint32_t max_blocks, Launcher&& launch) {
  if (params.rows.count <= 0) return true;
  return launch(SizeOf(RowMoverBlocks(params.rows.count, max_blocks), 1,
                       kRowMoverThreads),
                kKernel<RowMover<kConversion, Source, Destination>>, params);
}

// False for a conversion that does not fit the operation.
template <typename Launcher>
bool RunAppend(const AppendRows& append, RowConversion conversion,
               uint32_t max_blocks, Launcher&& launch) {
  const auto params = MakeParams(append);
  switch (conversion) {
    case RowConversion::kNone:
      return RunRows<RowConversion::kNone>(params, max_blocks, launch);
    case RowConversion::kFloatToBFloat16:
      return RunRows<RowConversion::kFloatToBFloat16>(params, max_blocks,
                                                      launch);
    case RowConversion::kFloatToHalf:
      return RunRows<RowConversion::kFloatToHalf>(params, max_blocks, launch);
    default:
      return false;
  }
}

template <typename Launcher>
bool RunGather(const GatherRows& gather, RowConversion conversion,
               uint32_t max_blocks, Launcher&& launch) {
  switch (conversion) {
    case RowConversion::kNone:
      return RunRows<RowConversion::kNone>(MakeParams(gather, 1), max_blocks,
                                           launch);
    case RowConversion::kBFloat16ToFloat:
      return RunRows<RowConversion::kBFloat16ToFloat>(MakeParams(gather, 2),
                                                      max_blocks, launch);
    case RowConversion::kHalfToFloat:
      return RunRows<RowConversion::kHalfToFloat>(MakeParams(gather, 2),
                                                  max_blocks, launch);
    default:
      return false;
  }
}

template <typename Launcher>
bool RunMove(const MoveRows& move, uint32_t max_blocks, Launcher&& launch) {
  constexpr RowConversion kNone = RowConversion::kNone;
  if (move.staged == nullptr) {
    return RunRows<kNone>(MakeParams(move), max_blocks, launch);
  }
  return RunRows<kNone>(MakeStageParams(move), max_blocks, launch) &&
         RunRows<kNone>(MakeUnstageParams(move), max_blocks, launch);
}

template <typename Launcher>
bool RunCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                   Launcher&& launch) {
  return RunRows<RowConversion::kNone>(MakeParams(copy), max_blocks, launch);
}

template <typename Launcher>
bool RunPackPages(const StagePages& stage, uint32_t max_blocks,
                  Launcher&& launch) {
  return RunRows<RowConversion::kNone>(MakePackParams(stage), max_blocks,
                                       launch);
}

template <typename Launcher>
bool RunUnpackPages(const StagePages& stage, uint32_t max_blocks,
                    Launcher&& launch) {
  return RunRows<RowConversion::kNone>(MakeUnpackParams(stage), max_blocks,
                                       launch);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_
