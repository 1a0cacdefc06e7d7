// The kernels of window_scores.h.
#ifndef KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_
#define KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_

#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/row_stats.cuh"
#include "kernels/cuda/scores/window_scores.cuh"
#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Adds the keys of a tile to the statistics of a lane's two rows. Each lane
// keeps its own columns apart until the end.
SIMT_DEVICE void AddLogits(const TileLogits& logits, float scale_log2,
                           RowStats (&stats)[2]) {
  SIMT_UNROLL
  for (int half = 0; half < 2; ++half) {
    float max = -INFINITY;
    SIMT_UNROLL
    for (int n = 0; n < kEntryTile / 8; ++n) {
      max = fmaxf(max, fmaxf(logits[n][half * 2], logits[n][half * 2 + 1]));
    }
    max = fmaxf(stats[half].max, max * scale_log2);
    const float base = FiniteMax(max);
    float sum = stats[half].sum * simt::Exp2(stats[half].max - base);
    SIMT_UNROLL
    for (int n = 0; n < kEntryTile / 8; ++n) {
      sum += simt::Exp2(logits[n][half * 2] * scale_log2 - base) +
             simt::Exp2(logits[n][half * 2 + 1] * scale_log2 - base);
    }
    stats[half].max = max;
    stats[half].sum = sum;
  }
}

// Grid: {window_splits.count * WindowShape::RowBlocks}. Blocks of queries that
// read the same keys are side by side.
template <typename T, int kDim>
SIMT_KERNEL(kWindowThreads, 2)
void WindowStats(WindowParams params) {
  simt::AwaitEarlierKernels();
  using Shape = WindowShape<T, kDim>;
  const int32_t row_blocks = Shape::RowBlocks(params);
  const int32_t split = static_cast<int32_t>(simt::BlockX()) / row_blocks;
  const int32_t row_block =
      static_cast<int32_t>(simt::BlockX()) - split * row_blocks;
  const WindowBlock block =
      MakeWindowBlock(params, FindWindowSplit(params.entries, split), false);
  const int32_t first_m_tile =
      row_block * Shape::kBlockMTiles + WarpIndex() * Shape::kMTiles;
  WindowQueries<kDim> queries[Shape::kMTiles];
  RowStats stats[Shape::kMTiles][2];
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    queries[m].Load(params, block, first_m_tile + m);
  }
  const RowsB<kDim> rows_b;
  const float scale_log2 = params.scale * kLog2E;
  KeyTiles<Shape, kDim, T> tiles(params, block);
  tiles.ForEach(block, [&](const T* keys, int32_t first_entry) {
    ForEachLogits(block, first_m_tile, queries, rows_b, keys, first_entry,
                  [&](int m, const TileLogits& logits) {
                    AddLogits(logits, scale_log2, stats[m]);
                  });
  });
  const int64_t rows = int64_t{block.num_m_tiles(params)} * 16;
  float* out = params.partial_stats + split * rows * 2;
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const RowStats total = SumOverLanes(stats[m][half], 2);
      const int32_t m_tile = first_m_tile + m;
      const int32_t row = m_tile * 16 + LaneIndex() / 4 + half * 8;
      if (LaneIndex() % 4 == 0 && m_tile < block.num_m_tiles(params)) {
        out[row * 2] = total.max;
        out[row * 2 + 1] = total.sum;
      }
    }
  }
}

// Grid: {lists, any number of blocks that share the rows}. Adds up the splits
// of a list, one warp per row: a lane adds splits that are 32 apart, then the
// lanes are added.
SIMT_KERNEL(kWindowThreads, 8)
void MergeWindowStats(WindowParams params) {
  simt::AwaitEarlierKernels();
  constexpr int32_t kWarps = kWindowThreads / 32;
  const int32_t list = static_cast<int32_t>(simt::BlockX());
  const WindowList block(params, list);
  const int64_t rows = int64_t{block.num_m_tiles(params)} * 16;
  const int32_t begin = params.entries.window_splits.offsets[list];
  const int32_t end = params.entries.window_splits.offsets[list + 1];
  const int64_t num_q_heads =
      int64_t{params.entries.num_heads} * params.group_size;
  for (int32_t i = static_cast<int32_t>(simt::BlockY()) * kWarps + WarpIndex();
       i < params.window * params.group_size;
       i += static_cast<int32_t>(simt::num_blocks_y()) * kWarps) {
    const int32_t q_head = i / params.window;
    const int32_t query = i % params.window;
    const int64_t row = int64_t{q_head} * block.tiles_per_head * 16 + query;
    RowStats total;
    for (int32_t split = begin + LaneIndex(); split < end; split += 32) {
      const float* stats = params.partial_stats + (split * rows + row) * 2;
      RowStats part;
      part.max = stats[0];
      part.sum = stats[1];
      total.Add(part);
    }
    total = SumOverLanes(total, 16);
    if (LaneIndex() != 0) continue;
    params.lse[(int64_t{block.sequence} * params.window + query) * num_q_heads +
               block.head * params.group_size + q_head] = kLn2 * total.Lse();
  }
}

// One step of the reduction below: a lane keeps half of 2 kKeep values and adds
// its partner's values of this half.
template <int kKeep>
SIMT_DEVICE void ScatterStep(uint32_t mask, float (&values)[16]) {
  const bool high = (simt::Lane() & mask) != 0;
  SIMT_UNROLL
  for (int i = 0; i < kKeep; ++i) {
    const float mine = high ? values[kKeep + i] : values[i];
    const float theirs = high ? values[i] : values[kKeep + i];
    values[i] = mine + simt::ShuffleXor(theirs, mask);
  }
}

// Sums 16 values at once over the 8 lanes that hold the rows of a column.
// Afterwards a lane has two columns, 8 n + 2 (lane % 4) and the next. Bits 16,
// 8 and 4 of the lane give n, from high to low. This takes 14 shuffles instead
// of 48.
SIMT_DEVICE void ScatterColumnSums(float (&values)[16]) {
  ScatterStep<8>(16, values);
  ScatterStep<4>(8, values);
  ScatterStep<2>(4, values);
}

// Writes the weights of 16 queries and a tile of keys, summed over the queries,
// to shared memory.
template <typename T, int kDim>
SIMT_DEVICE void StoreColumnSums(const TileLogits& logits, float scale_log2,
                                 const float (&lse_log2)[2], int32_t place) {
  using Shape = WindowShape<T, kDim>;
  float sums[16];
  SIMT_UNROLL
  for (int n = 0; n < kEntryTile / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 2; ++j) {
      sums[n * 2 + j] = simt::Exp2(logits[n][j] * scale_log2 - lse_log2[0]) +
                        simt::Exp2(logits[n][j + 2] * scale_log2 - lse_log2[1]);
    }
  }
  ScatterColumnSums(sums);
  const int32_t lane = LaneIndex();
  const int32_t n =
      ((lane >> 4) & 1) * 4 + ((lane >> 3) & 1) * 2 + ((lane >> 2) & 1);
  const auto columns =
      simt::Shared<float>(Shape::kTileBytes, Shape::kSumFloats);
  const int32_t column = place * kEntryTile + n * 8 + lane % 4 * 2;
  columns.Store(column, sums[0]);
  columns.Store(column + 1, sums[1]);
}

// The queries that a CTA has in registers at a time.
struct WindowPass {
  // Tiles of 16 queries, and the query heads that the tiles belong to.
  int32_t first = 0;
  int32_t last = 0;
  int32_t q_head = 0;
  int32_t q_head_end = 0;
  // The place where this thread's weights of its first query head begin, or
  // null if they are not kept.
  float* out = nullptr;

  SIMT_DEVICE WindowPass(const WindowParams& params, const WindowBlock& block,
                         int32_t first_m_tile, int32_t most)
      : first(first_m_tile) {
    const int32_t num_m_tiles = block.num_m_tiles(params);
    last = first + most < num_m_tiles ? first + most : num_m_tiles;
    q_head = first / block.tiles_per_head + Thread() / kEntryTile;
    q_head_end = (last - 1) / block.tiles_per_head + 1;
    if (params.attention == nullptr) return;
    out = params.attention + block.entries.offset * params.group_size +
          int64_t{q_head} * block.entries.size;
  }
};

// Adds the column sums of one pass to the output, tile of queries by tile.
// `share` is the share of one query in the mean over the window.
template <typename T, int kDim>
SIMT_DEVICE void AddColumns(const WindowParams& params,
                            const WindowBlock& block, const WindowPass& pass,
                            float share, int32_t first_entry) {
  using Shape = WindowShape<T, kDim>;
  const auto columns =
      simt::Shared<float>(Shape::kTileBytes, Shape::kSumFloats);
  const int32_t entry = first_entry + Thread() % kEntryTile;
  if (entry >= block.end) return;
  const int32_t first = pass.first;
  const int32_t last = pass.last;
  if (params.sums != nullptr) {
    if (Thread() >= kEntryTile) return;
    float sum = params.sums[block.entries.offset + entry];
    SIMT_UNROLL_BY(1)
    for (int32_t m = first; m < last; ++m) {
      sum += columns.Load((m - first) * kEntryTile + Thread());
    }
    params.sums[block.entries.offset + entry] = sum;
    return;
  }
  constexpr int32_t kHeads = kWindowThreads / kEntryTile;
  const int32_t stride = block.entries.size * kHeads;
  float* out = pass.out + entry;
  SIMT_UNROLL_BY(1)
  for (int32_t q_head = pass.q_head; q_head < pass.q_head_end;
       q_head += kHeads, out += stride) {
    const int32_t begin = q_head * block.tiles_per_head;
    const int32_t end = begin + block.tiles_per_head;
    // A long window takes several passes.
    float sum = begin < first ? *out : 0.0f;
    const int32_t stop = end < last ? end : last;
    SIMT_UNROLL_BY(1)
    for (int32_t m = begin < first ? first : begin; m < stop; ++m) {
      sum += columns.Load((m - first) * kEntryTile + Thread() % kEntryTile);
    }
    *out = end <= last ? sum * share : sum;
  }
}

// Grid: {window_splits.count}.
template <typename T, int kDim>
SIMT_KERNEL(kWindowThreads, 2)
void WindowColumns(WindowParams params) {
  simt::AwaitEarlierKernels();
  using Shape = WindowShape<T, kDim>;
  const WindowBlock block = MakeWindowBlock(
      params,
      FindWindowSplit(params.entries, static_cast<int32_t>(simt::BlockX())),
      params.sums == nullptr);
  if (block.begin >= block.end) return;
  const int32_t num_m_tiles = block.num_m_tiles(params);
  const RowsB<kDim> rows_b;
  const float scale_log2 = params.scale * kLog2E;
  const float share = 1.0f / static_cast<float>(params.window);
  KeyTiles<Shape, kDim, T> tiles(params, block);
  for (int32_t first = 0; first < num_m_tiles; first += Shape::kBlockMTiles) {
    const WindowPass pass(params, block, first, Shape::kBlockMTiles);
    const int32_t first_m_tile = first + WarpIndex() * Shape::kMTiles;
    WindowQueries<kDim> queries[Shape::kMTiles];
    float lse_log2[Shape::kMTiles][2];
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      queries[m].Load(params, block, first_m_tile + m);
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const WindowRow row(block, first_m_tile + m, half);
        // Padding and a query that sees no entry have the weight 0.
        const float lse = row.Exists(params)
                              ? params.lse[row.Index(params, block)] * kLog2E
                              : INFINITY;
        lse_log2[m][half] = lse == -INFINITY ? INFINITY : lse;
      }
    }
    tiles.ForEach(block, [&](const T* keys, int32_t first_entry) {
      ForEachLogits(block, first_m_tile, queries, rows_b, keys, first_entry,
                    [&](int m, const TileLogits& logits) {
                      StoreColumnSums<T, kDim>(
                          logits, scale_log2, lse_log2[m],
                          WarpIndex() * Shape::kMTiles + m);
                    });
      simt::SyncBlock();
      AddColumns<T, kDim>(params, block, pass, share, first_entry);
    });
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_
