// The kernel of chunk_attention.h.
#ifndef KERNELS_CUDA_ATTENTION_CHUNK_KERNEL_CUH_
#define KERNELS_CUDA_ATTENTION_CHUNK_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/attention/chunk_attention.cuh"
#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/rank_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns whether every row of the CTA sees every rank of a tile. The limits of
// the rows are between least_limit and most_limit.
template <bool kWindow>
SIMT_DEVICE bool AllSeen(const AttentionLists& lists, const AttentionList& list,
                         int32_t first_rank, int32_t least_limit,
                         int32_t most_limit) {
  const int32_t end = first_rank + kChunkRanks;
  if (kWindow && (IsOutOfWindow(lists, first_rank, most_limit) ||
                  first_rank < list.region_slots)) {
    return false;
  }
  return end <= least_limit && (end <= list.region_length ||
                                list.region_length == list.region_slots ||
                                first_rank >= list.region_slots);
}

// Grid: {block_offsets[num_sequences], num_heads}. kWindow: the lists have a
// window. This is a kernel of its own, because registers are scarce.
template <typename T, int kDim, bool kWindow>
SIMT_KERNEL(kChunkThreads, 2)
void ChunkAttention(ChunkParams params) {
  simt::AwaitEarlierKernels();
  using Shape = ChunkShape<T, kDim>;
  T* const query_tile = reinterpret_cast<T*>(simt::SharedBytes());
  T* const tiles = query_tile + Shape::kQueryElements;
  ChunkBlock block = MakeChunkBlock(params);
  CopyQueries<kDim>(params, block, query_tile);
  const int32_t last_row = block.first_row + kChunkRows < block.num_rows
                               ? block.first_row + kChunkRows - 1
                               : block.num_rows - 1;
  const int32_t least_limit = RowLimit(params, block, block.first_row);
  const int32_t num_tiles =
      (RowLimit(params, block, last_row) + kChunkRanks - 1) / kChunkRanks;
  int32_t first_tile = 0;
  if constexpr (kWindow) {
    // No row sees the tiles before. Leaving them out changes no bit.
    block.list.first_rank = FirstRank(params.lists, least_limit);
    first_tile = block.list.FirstRead() / kChunkRanks;
  } else {
    block.list.first_rank = 0;
  }
  const auto copy = [&](int32_t tile) {
    if (tile < num_tiles) {
      T* const keys =
          tiles + tile % Shape::kStages * (2 * Shape::kTileElements);
      const int32_t row = WarpIndex() * kRankRows;
      CopyRankRows<kDim>(params.pool, block.list, params.lists.layer,
                         tile * kChunkRanks + row, row, keys,
                         keys + Shape::kTileElements);
    }
    simt::CommitCopies();  // the first group holds the queries too
  };
  copy(first_tile);
  ChunkState<kDim> state;
  state.Reset(params, block);
  ChunkQueries<T, kDim> queries;
  for (int32_t tile = first_tile; tile < num_tiles; ++tile) {
    simt::WaitCopies<0>();
    // Publishes this tile, and says that the one before is not read any more.
    simt::SyncBlock();
    copy(tile + 1);
    if (tile == first_tile) queries.Load(query_tile);
    const T* keys = tiles + tile % Shape::kStages * (2 * Shape::kTileElements);
    const int32_t first_rank = tile * kChunkRanks;
    float logits[kChunkRanks / 8][4];
    ChunkLogits<T, kDim>(queries, keys, params.scale * kLog2E, logits);
    if (!AllSeen<kWindow>(params.lists, block.list, first_rank, least_limit,
                          num_tiles * kChunkRanks)) {
      MaskChunk<kWindow>(params.lists, block.list, first_rank, state.limit,
                         logits);
    }
    ChunkSoftmax<kDim>(logits, &state);
    ChunkOutput<T, kDim>(logits, keys + Shape::kTileElements, &state);
  }
  // Without tiles, the queries may still be under way.
  simt::WaitCopies<0>();
  StoreChunk<T, kDim>(params, block, state);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_CHUNK_KERNEL_CUH_
