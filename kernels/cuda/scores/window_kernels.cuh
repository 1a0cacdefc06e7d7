// The kernels of window_scores.h.
#ifndef KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_
#define KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/row_stats.cuh"
#include "kernels/cuda/scores/window_scores.cuh"
#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns whether a sum of weights is so far from the limits of fp32 that more
// keys can be added. Returns false for NaN.
SIMT_DEVICE bool IsFarFromLimits(float sum) {
  return sum > 0x1p-64f && sum < 0x1p64f;
}

// The statistics of a lane's rows. Each lane keeps its own columns apart until
// the end. A softmax needs no maximum, only a reference that keeps its sum in
// range. The reference is 0 at first, and moves when a sum comes near to the
// limits of fp32.
template <int kMTiles>
struct LaneStats {
  RowStats rows[kMTiles][2];

  SIMT_DEVICE LaneStats() {
    SIMT_UNROLL
    for (int m = 0; m < kMTiles; ++m) rows[m][0].max = rows[m][1].max = 0.0f;
  }

  // Adds the keys of half a tile.
  SIMT_DEVICE void Add(const HalfLogits (&logits)[kMTiles], float scale_log2) {
    float sums[kMTiles][2];
    bool fit = true;
    SIMT_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const RowStats& row = rows[m][half];
        float sum = row.sum;
        SIMT_UNROLL
        for (int n = 0; n < kHalfTile / 8; ++n) {
          const float* pair = logits[m][n] + half * 2;
          sum += simt::Exp2(pair[0] * scale_log2 - row.max) +
                 simt::Exp2(pair[1] * scale_log2 - row.max);
        }
        fit = fit & IsFarFromLimits(sum);
        sums[m][half] = sum;
      }
    }
    if (!fit) {
      AddAndRebase(logits, scale_log2);
      return;
    }
    SIMT_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      rows[m][0].sum = sums[m][0];
      rows[m][1].sum = sums[m][1];
    }
  }

  // Returns the statistics of the row that lanes of one lane / 4 have.
  SIMT_DEVICE RowStats Total(int m, int half) const {
    const RowStats& mine = rows[m][half];
    return SumOverLanes(mine.sum == 0.0f ? RowStats() : mine, 2);
  }

 private:
  // Moves the references to the sums, or to the largest of the keys.
  SIMT_DEVICE void AddAndRebase(const HalfLogits (&logits)[kMTiles],
                                float scale_log2) {
    SIMT_UNROLL
    for (int i = 0; i < kMTiles * 2; ++i) {
      RowStats& row = rows[i / 2][i % 2];
      float max = -INFINITY;
      SIMT_UNROLL
      for (int n = 0; n < kHalfTile / 8; ++n) {
        const float* pair = logits[i / 2][n] + i % 2 * 2;
        max = fmaxf(max, fmaxf(pair[0], pair[1]));
      }
      const float before = row.Lse();
      row.max = FiniteMax(fmaxf(before, max * scale_log2));
      row.sum = simt::Exp2(before - row.max);
      // The products are not those of Add. A compiler would keep them
      // otherwise, and not fuse them there.
      SIMT_UNROLL
      for (int n = 0; n < kHalfTile / 8; ++n) {
        const float* pair = logits[i / 2][n] + i % 2 * 2;
        row.sum += simt::Exp2(fmaf(pair[0], scale_log2, -row.max)) +
                   simt::Exp2(fmaf(pair[1], scale_log2, -row.max));
      }
    }
  }
};

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
  LaneStats<Shape::kMTiles> stats;
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    queries[m].Load(params, block, first_m_tile + m);
  }
  const float scale_log2 = params.scale * kLog2E;
  const int32_t num_m_tiles = block.num_m_tiles(params);
  KeyTiles<Shape, kDim, T> tiles(params, block);
  ForEachHalf(
      tiles, block, first_m_tile < num_m_tiles, queries,
      [&](HalfLogits(&logits)[Shape::kMTiles], int32_t first_entry) {
        MaskLogits(block, first_m_tile, first_entry, logits);
      },
      [&](const HalfLogits(&logits)[Shape::kMTiles], int32_t) {
        stats.Add(logits, scale_log2);
      });
  const int64_t rows = int64_t{num_m_tiles} * 16;
  float* out = params.partial_stats + split * rows * 2;
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const RowStats total = stats.Total(m, half);
      const int32_t m_tile = first_m_tile + m;
      const int32_t row = m_tile * 16 + LaneIndex() / 4 + half * 8;
      if (LaneIndex() % 4 == 0 && m_tile < num_m_tiles) {
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
SIMT_DEVICE void ScatterStep(uint32_t mask, float (&values)[8]) {
  const bool high = (simt::Lane() & mask) != 0;
  SIMT_UNROLL
  for (int i = 0; i < kKeep; ++i) {
    const float mine = high ? values[kKeep + i] : values[i];
    const float theirs = high ? values[i] : values[kKeep + i];
    values[i] = mine + simt::ShuffleXor(theirs, mask);
  }
}

// The column of half a tile whose sum a lane gets: 8 n + 2 (lane % 4) + j. Bits
// 16, 8 and 4 of the lane give 2 n + j, from high to low.
SIMT_DEVICE int32_t HalfColumn() {
  const int32_t lane = LaneIndex();
  return lane / 16 * 16 + (lane / 8 & 1) * 8 + lane % 4 * 2 + (lane / 4 & 1);
}

// C. Returns the sum of the weights of 16 kCount queries for the key
// HalfColumn. A lane first adds its own rows, 8 columns. The 8 lanes that hold
// the rows of a column are added for all columns at once, which takes 7
// shuffles instead of 24.
template <int kCount>
SIMT_DEVICE float SumColumns(const HalfLogits* logits, float scale_log2,
                             const float (*lse_log2)[2]) {
  float sums[8];
  SIMT_UNROLL
  for (int i = 0; i < 8; ++i) {
    SIMT_UNROLL
    for (int m = 0; m < kCount; ++m) {
      const float* column = logits[m][i / 2] + i % 2;
      const float both = simt::Exp2(column[0] * scale_log2 - lse_log2[m][0]) +
                         simt::Exp2(column[2] * scale_log2 - lse_log2[m][1]);
      sums[i] = m == 0 ? both : sums[i] + both;
    }
  }
  ScatterStep<4>(16, sums);
  ScatterStep<2>(8, sums);
  ScatterStep<1>(4, sums);
  return sums[0];
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

// The queries of a warp, and the logarithms to base 2 of the denominators of a
// lane's rows.
template <typename T, int kDim>
struct WindowWarp {
  static constexpr int kMTiles = WindowShape<T, kDim>::kMTiles;

  int32_t first_m_tile;
  bool exists;  // not only padding
  float scale_log2;
  WindowQueries<kDim> queries[kMTiles];
  float lse_log2[kMTiles][2];

  SIMT_DEVICE WindowWarp(const WindowParams& params, const WindowBlock& block,
                         int32_t m_tile)
      : first_m_tile(m_tile),
        exists(m_tile < block.num_m_tiles(params)),
        scale_log2(params.scale * kLog2E) {
    SIMT_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      queries[m].Load(params, block, m_tile + m);
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const WindowRow row(block, m_tile + m, half);
        // Padding and a query that sees no entry have the weight 0.
        const float lse = row.Exists(params)
                              ? params.lse[row.Index(params, block)] * kLog2E
                              : INFINITY;
        lse_log2[m][half] = lse == -INFINITY ? INFINITY : lse;
      }
    }
  }
};

// Writes the means of weights of a split, where the tiles of a warp are one
// query head: no sums of other warps are needed.
template <typename Shape, typename T, int kDim>
SIMT_DEVICE void WriteHead(const WindowParams& params, const WindowBlock& block,
                           const WindowWarp<T, kDim>& warp, float share,
                           KeyTiles<Shape, kDim, T>& tiles) {
  const int32_t num_entries = block.end - block.begin;
  float* const out =
      params.attention + block.entries.offset * params.group_size +
      int64_t{warp.first_m_tile / Shape::kMTiles} * block.entries.size +
      block.begin;
  ForEachHalf(
      tiles, block, warp.exists, warp.queries,
      // All entries are before the window.
      [](HalfLogits(&)[Shape::kMTiles], int32_t) {},
      [&](const HalfLogits(&logits)[Shape::kMTiles], int32_t first_entry) {
        const float sum =
            SumColumns<Shape::kMTiles>(logits, warp.scale_log2, warp.lse_log2);
        const int32_t i = first_entry - block.begin + HalfColumn();
        if (i >= 0 && i < num_entries) out[i] = sum * share;
      });
}

// Writes the weights of a warp's queries and a tile of keys, summed over 16
// queries, to shared memory.
template <typename Shape, typename T, int kDim>
SIMT_DEVICE void StoreColumns(const WindowBlock& block,
                              const WindowWarp<T, kDim>& warp, const T* keys,
                              int32_t first_entry) {
  const auto columns =
      simt::Shared<float>(Shape::kTileBytes, Shape::kSumFloats);
  SIMT_UNROLL
  for (int32_t first = 0; first < kEntryTile; first += kHalfTile) {
    HalfLogits logits[Shape::kMTiles];
    MultiplyKeys<Shape>(warp.queries, keys + first * Shape::kRowElements,
                        logits);
    MaskLogits(block, warp.first_m_tile, first_entry + first, logits);
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      const float sum =
          SumColumns<1>(logits + m, warp.scale_log2, warp.lse_log2 + m);
      const int32_t place = WarpIndex() * Shape::kMTiles + m;
      columns.Store(place * kEntryTile + first + HalfColumn(), sum);
    }
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
  const float share = 1.0f / static_cast<float>(params.window);
  const bool warps_are_heads =
      params.sums == nullptr && block.tiles_per_head == Shape::kMTiles;
  KeyTiles<Shape, kDim, T> tiles(params, block);
  for (int32_t first = 0; first < num_m_tiles; first += Shape::kBlockMTiles) {
    const WindowWarp<T, kDim> warp(params, block,
                                   first + WarpIndex() * Shape::kMTiles);
    if (warps_are_heads) {
      WriteHead(params, block, warp, share, tiles);
      continue;
    }
    const WindowPass pass(params, block, first, Shape::kBlockMTiles);
    tiles.ForEach(block, [&](const T* keys, int32_t first_entry) {
      tiles.CopyNext();
      if (warp.exists) StoreColumns<Shape>(block, warp, keys, first_entry);
      simt::SyncBlock();
      AddColumns<T, kDim>(params, block, pass, share, first_entry);
    });
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_KERNELS_CUH_
