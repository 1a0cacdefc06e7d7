// The launches of the row mover; see launch_shapes.cuh.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_
#define KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/rows/row_mover.cuh"
#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <RowConversion kConversion>
using Conversion = std::integral_constant<RowConversion, kConversion>;

// Rows of 2-byte elements that are given as float are twice as long.
template <RowConversion kConversion>
inline constexpr uint32_t kWidening = kSourceBytes<kConversion> == 8 ? 2 : 1;

// max_blocks: as in row_mover_launch.h.
template <RowConversion kConversion, typename Operation, typename Source,
          typename Destination, typename Launcher>
bool RunRows(const Operation& operation, const RowCount& rows,
             const Source& source, const Destination& destination,
             uint32_t max_blocks, Launcher& launch) {
  if (rows.count <= 0) return true;
  const RowMoverParams<Source, Destination> params = {
      source, destination, rows,
      static_cast<uint32_t>(operation.pool.row_bytes) / 16 *
          kWidening<kConversion>,
      operation.error};
  return launch(
      SizeOf(RowMoverBlocks(rows.count, max_blocks), 1, kRowMoverThreads),
      kKernel<RowMover<kConversion, Source, Destination>>, params);
}

// Returns false for a conversion that does not fit the operation.
template <typename Launcher>
bool RunAppend(const AppendRows& append, RowConversion conversion,
               uint32_t max_blocks, Launcher& launch) {
  const auto run = [&](auto constant) {
    return RunRows<decltype(constant)::value>(
        append, {append.num_tokens * append.pool.num_heads, nullptr},
        TokenRows{append},
        TailRows{{append.pool}, append.layer, append.slot_mapping}, max_blocks,
        launch);
  };
  switch (conversion) {
    case RowConversion::kNone:
      return run(Conversion<RowConversion::kNone>());
    case RowConversion::kFloatToBFloat16:
      return run(Conversion<RowConversion::kFloatToBFloat16>());
    case RowConversion::kFloatToHalf:
      return run(Conversion<RowConversion::kFloatToHalf>());
    default:
      return false;
  }
}

template <typename Launcher>
bool RunGather(const GatherRows& gather, RowConversion conversion,
               uint32_t max_blocks, Launcher& launch) {
  const auto run = [&](auto constant) {
    constexpr RowConversion kConversion = decltype(constant)::value;
    return RunRows<kConversion>(
        gather, gather.rows, SlotRows{{gather.pool}, gather.slots},
        PackedRows{gather.out, gather.positions,
                   int64_t{gather.pool.row_bytes} * kWidening<kConversion>},
        max_blocks, launch);
  };
  switch (conversion) {
    case RowConversion::kNone:
      return run(Conversion<RowConversion::kNone>());
    case RowConversion::kBFloat16ToFloat:
      return run(Conversion<RowConversion::kBFloat16ToFloat>());
    case RowConversion::kHalfToFloat:
      return run(Conversion<RowConversion::kHalfToFloat>());
    default:
      return false;
  }
}

template <typename Launcher>
bool RunMove(const MoveRows& move, uint32_t max_blocks, Launcher& launch) {
  constexpr RowConversion kNone = RowConversion::kNone;
  const MovedRows<true> sources = {{move.pool}, move.moves};
  const MovedRows<false> destinations = {{move.pool}, move.moves};
  if (move.staged == nullptr) {
    return RunRows<kNone>(move, move.rows, sources, destinations, max_blocks,
                          launch);
  }
  const PackedRows staged = {move.staged, move.staged_positions,
                             move.pool.row_bytes};
  return RunRows<kNone>(move, move.rows, sources, staged, max_blocks, launch) &&
         RunRows<kNone>(
             move, move.rows,
             StagedMoveRows{staged, move.pool.num_slots(), move.moves},
             destinations, max_blocks, launch);
}

template <typename Launcher>
bool RunCopyBlocks(const CopyBlockRows& copy, uint32_t max_blocks,
                   Launcher& launch) {
  const PagedPool& pool = copy.pool;
  const Divider by_layers = MakeDivider(static_cast<uint32_t>(pool.num_layers));
  const int64_t rows_per_block =
      int64_t{pool.num_layers} * pool.num_heads * pool.page_size;
  return RunRows<RowConversion::kNone>(
      copy, {copy.num_pairs * rows_per_block, nullptr},
      BlockRows<true>{{pool}, by_layers, copy.pairs},
      BlockRows<false>{{pool}, by_layers, copy.pairs}, max_blocks, launch);
}

inline StagedPageRows StagedRowsOf(const StagePages& stage) {
  return {stage.staged, stage.positions, stage.pool.row_bytes,
          stage.pool.by_page_size};
}

template <typename Launcher>
bool RunPackPages(const StagePages& stage, uint32_t max_blocks,
                  Launcher& launch) {
  return RunRows<RowConversion::kNone>(
      stage, {stage.num_pages * stage.pool.page_size, nullptr},
      PageRows{{stage.pool}, stage.pages}, StagedRowsOf(stage), max_blocks,
      launch);
}

template <typename Launcher>
bool RunUnpackPages(const StagePages& stage, uint32_t max_blocks,
                    Launcher& launch) {
  return RunRows<RowConversion::kNone>(
      stage, {stage.num_pages * stage.pool.page_size, nullptr},
      StagedRowsOf(stage), PageRows{{stage.pool}, stage.pages}, max_blocks,
      launch);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_SEQUENCE_CUH_
