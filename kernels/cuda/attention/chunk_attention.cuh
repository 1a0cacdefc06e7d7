// The device code of chunk_attention.h.
#ifndef KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_CUH_
#define KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/rank_rows.cuh"
#include "kernels/cuda/attention/sink_logits.cuh"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The shared memory: the queries, then two stages of K and V tiles.
template <typename T, int kDim>
struct ChunkShape {
  static constexpr int kStages = 2;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kQueryElements = kChunkRows * kDim;
  static constexpr int kTileElements = kChunkRanks * kDim;  // of K, or of V
  static constexpr size_t kSharedBytes =
      sizeof(T) * (kQueryElements + kStages * 2 * kTileElements);
  static_assert(kSharedBytes <= kMaxSharedBytes, "does not fit an SM");
  // Queries stay in registers if there are enough registers.
  static constexpr bool kKeepQueries = kDim <= 128;
};

// The rows of queries of one CTA.
struct ChunkBlock {
  AttentionList list;
  int32_t head = 0;
  int32_t first_token = 0;  // of the sequence, in the batch
  int32_t num_rows = 0;     // of the sequence: tokens * group_size
  int32_t first_row = 0;    // of this CTA
  int32_t first_limit = 0;  // rank after the last that its first token sees
};

// Finds the sequence of a block. The last rows, which see the most, come first.
SIMT_DEVICE ChunkBlock MakeChunkBlock(const ChunkParams& params) {
  const int32_t block =
      static_cast<int32_t>(simt::num_blocks_x() - 1 - simt::BlockX());
  int32_t low = 0;
  int32_t high = params.lists.num_sequences;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (params.block_offsets[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  ChunkBlock result;
  result.head = static_cast<int32_t>(simt::BlockY());
  result.list =
      LoadList(params.lists, params.pool.page_shift, low, result.head);
  result.first_token = params.query_offsets[low];
  const int32_t num_queries =
      params.query_offsets[low + 1] - result.first_token;
  result.num_rows = num_queries * params.group_size;
  result.first_row = (block - params.block_offsets[low]) * kChunkRows;
  result.first_limit = result.list.num_ranks - num_queries + 1;
  return result;
}

// The place of a row of the sequence in arrays of shape [tokens, num_q_heads].
SIMT_DEVICE int64_t ChunkRowIndex(const ChunkParams& params,
                                  const ChunkBlock& block, int32_t row) {
  const int32_t token = row / params.group_size;
  const int64_t num_q_heads =
      int64_t{params.lists.num_heads} * params.group_size;
  return (int64_t{block.first_token} + token) * num_q_heads +
         block.head * params.group_size + (row - token * params.group_size);
}

// Returns the rank after the last rank that a row sees.
SIMT_DEVICE int32_t RowLimit(const ChunkParams& params, const ChunkBlock& block,
                             int32_t row) {
  return block.first_limit + row / params.group_size;
}

// Rows after the last are zeros.
template <int kDim, typename T>
SIMT_DEVICE void CopyQueries(const ChunkParams& params, const ChunkBlock& block,
                             T* queries) {
  constexpr int kChunks = kDim / kChunk;
  SIMT_UNROLL
  for (int i = 0; i < kChunkRows * kChunks / kChunkThreads; ++i) {
    const int32_t element = i * kChunkThreads + Thread();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    const bool exists = block.first_row + row < block.num_rows;
    const T* from = static_cast<const T*>(params.queries);
    if (exists) {
      from += ChunkRowIndex(params, block, block.first_row + row) * kDim +
              chunk * kChunk;
    }
    simt::CopyAsync16(queries + SwizzledChunk<kDim>(row, chunk), from, exists);
  }
}

// The state of a warp's 16 rows. A lane has the rows lane / 4 and lane / 4 + 8,
// and in every 8 columns the columns 2 (lane % 4) and 2 (lane % 4) + 1.
template <int kDim>
struct ChunkState {
  float output[kDim / 8][4];
  float max[2];
  float sum[2];  // of this lane's columns
  int32_t limit[2];

  SIMT_DEVICE void Reset(const ChunkParams& params, const ChunkBlock& block) {
    SIMT_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) output[n][j] = 0.0f;
    }
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t row =
          block.first_row + WarpIndex() * 16 + LaneIndex() / 4 + half * 8;
      max[half] = -INFINITY;
      sum[half] = 0.0f;
      // Rows after the last see what the last row sees, and are not stored.
      const int32_t last = block.num_rows - 1;
      limit[half] = RowLimit(params, block, row < last ? row : last);
    }
  }
};

// The fragments of a warp's queries, kept in registers or read from shared
// memory every time.
template <typename T, int kDim>
struct ChunkQueries {
  static constexpr int kKept =
      ChunkShape<T, kDim>::kKeepQueries ? kDim / 16 : 1;
  const T* tile = nullptr;
  uint32_t kept[kKept][4];

  SIMT_DEVICE void Load(const T* queries) {
    tile = queries;
    if constexpr (ChunkShape<T, kDim>::kKeepQueries) {
      SIMT_UNROLL
      for (int i = 0; i < kDim / 16; ++i) {
        LoadRowsA<kDim>(tile, WarpIndex() * 16, i, kept[i]);
      }
    }
  }
  SIMT_DEVICE void Get(int i, uint32_t (&a)[4]) const {
    if constexpr (ChunkShape<T, kDim>::kKeepQueries) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) a[j] = kept[i][j];
    } else {
      LoadRowsA<kDim>(tile, WarpIndex() * 16, i, a);
    }
  }
};

// Computes the logits of 16 rows and a tile, times scale * log2(e), not masked.
template <typename T, int kDim>
SIMT_DEVICE void ChunkLogits(const ChunkQueries<T, kDim>& queries,
                             const T* keys, float scale_log2,
                             float (&logits)[kChunkRanks / 8][4]) {
  SIMT_UNROLL
  for (int n = 0; n < kChunkRanks / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 4; ++j) logits[n][j] = 0.0f;
  }
  SIMT_UNROLL
  for (int i = 0; i < kDim / 16; ++i) {
    uint32_t a[4];
    queries.Get(i, a);
    SIMT_UNROLL
    for (int n = 0; n < kChunkRanks / 8; n += 2) {
      uint32_t b[4];
      LoadRowsB<kDim>(keys, n * 8, i, b);
      simt::Mma16816<T>(logits[n], a, b[0], b[1]);
      simt::Mma16816<T>(logits[n + 1], a, b[2], b[3]);
    }
  }
  SIMT_UNROLL
  for (int n = 0; n < kChunkRanks / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 4; ++j) logits[n][j] *= scale_log2;
  }
}

// Returns whether a rank has left the window of a row.
SIMT_DEVICE bool IsOutOfWindow(const AttentionLists& lists, int32_t rank,
                               int32_t limit) {
  return limit - rank > lists.window;
}

// Returns whether one of the region's ranks is in the window of a row.
SIMT_DEVICE bool IsInWindow(const AttentionList& list, int32_t rank,
                            int32_t limit) {
  return list.region_positions[rank] >= list.position_shift + limit;
}

// Sets logits to -infinity where the row does not see the rank, or the rank is
// dead.
template <bool kWindow>
SIMT_DEVICE void MaskChunk(const AttentionLists& lists,
                           const AttentionList& list, int32_t first_rank,
                           const int32_t (&limit)[2],
                           float (&logits)[kChunkRanks / 8][4]) {
  SIMT_UNROLL
  for (int n = 0; n < kChunkRanks / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int32_t rank = first_rank + n * 8 + LaneIndex() % 4 * 2 + j % 2;
      bool live = IsLive(list, rank);
      live = live && rank < limit[j / 2];
      if constexpr (kWindow) {
        live = live && (rank < list.region_slots
                            ? IsInWindow(list, rank, limit[j / 2])
                            : !IsOutOfWindow(lists, rank, limit[j / 2]));
      }
      if (!live) logits[n][j] = -INFINITY;
    }
  }
}

// Turns logits into weights, and rescales the earlier state.
template <int kDim>
SIMT_DEVICE void ChunkSoftmax(float (&logits)[kChunkRanks / 8][4],
                              ChunkState<kDim>* state) {
  SIMT_UNROLL
  for (int half = 0; half < 2; ++half) {
    float max = -INFINITY;
    SIMT_UNROLL
    for (int n = 0; n < kChunkRanks / 8; ++n) {
      max = fmaxf(max, fmaxf(logits[n][half * 2], logits[n][half * 2 + 1]));
    }
    max = fmaxf(state->max[half], MaxOverColumns(max));
    const float base = FiniteMax(max);
    const float shrink = simt::Exp2(state->max[half] - base);
    state->max[half] = max;
    float sum = 0.0f;
    SIMT_UNROLL
    for (int n = 0; n < kChunkRanks / 8; ++n) {
      SIMT_UNROLL
      for (int j = half * 2; j < half * 2 + 2; ++j) {
        logits[n][j] = simt::Exp2(logits[n][j] - base);
        sum += logits[n][j];
      }
    }
    state->sum[half] = state->sum[half] * shrink + sum;
    SIMT_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      state->output[n][half * 2] *= shrink;
      state->output[n][half * 2 + 1] *= shrink;
    }
  }
}

// O += P V. The accumulators of logits already have the layout of A operands.
template <typename T, int kDim>
SIMT_DEVICE void ChunkOutput(const float (&weights)[kChunkRanks / 8][4],
                             const T* values, ChunkState<kDim>* state) {
  SIMT_UNROLL
  for (int k = 0; k < kChunkRanks / 16; ++k) {
    const float(&low)[4] = weights[2 * k];
    const float(&high)[4] = weights[2 * k + 1];
    const uint32_t a[4] = {
        simt::Pack2<T>(low[0], low[1]), simt::Pack2<T>(low[2], low[3]),
        simt::Pack2<T>(high[0], high[1]), simt::Pack2<T>(high[2], high[3])};
    SIMT_UNROLL
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      LoadColumnsB<kDim>(values, k * 16, n, b);
      simt::Mma16816<T>(state->output[n], a, b[0], b[1]);
      simt::Mma16816<T>(state->output[n + 1], a, b[2], b[3]);
    }
  }
}

template <typename T, int kDim>
SIMT_DEVICE void StoreChunk(const ChunkParams& params, const ChunkBlock& block,
                            const ChunkState<kDim>& state) {
  SIMT_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = SumOverColumns(state.sum[half]);
    const int32_t row =
        block.first_row + WarpIndex() * 16 + LaneIndex() / 4 + half * 8;
    if (row >= block.num_rows) continue;
    const int64_t index = ChunkRowIndex(params, block, row);
    float max = state.max[half];
    float shrink = 1.0f;
    if (params.sinks != nullptr) {
      const int32_t q_head =
          block.head * params.group_size + row % params.group_size;
      shrink = AddSink(params.sinks[q_head], &max, &sum);
    }
    const float factor = sum == 0.0f ? 0.0f : shrink / sum;
    uint32_t* words =
        static_cast<uint32_t*>(params.output) + index * (kDim / 2);
    SIMT_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      words[n * 4 + LaneIndex() % 4] =
          simt::Pack2<T>(state.output[n][half * 2] * factor,
                         state.output[n][half * 2 + 1] * factor);
    }
    if (params.lse != nullptr && LaneIndex() % 4 == 0) {
      params.lse[index] =
          sum == 0.0f ? -INFINITY : kLn2 * (max + simt::Log2(sum));
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_CUH_
