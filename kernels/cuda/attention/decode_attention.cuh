// The device code of decode_attention.h.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_CUH_
#define KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention/decode_pieces.cuh"
#include "kernels/cuda/attention/rank_rows.cuh"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The shared memory: per warp kStages stages of K and V rows that no other warp
// touches, then the results of the warps for 8 query heads. T is the element
// type, kQTiles the number of query heads of a group divided by 8.
template <typename T, int kDim, int kQTiles>
struct DecodeShape {
  static constexpr int kWarps = kDecodeThreads / 32;
  static constexpr int kRows = kRankRows;  // of a warp's part of a tile
  static_assert(kWarps * kRows == kDecodeTileRanks, "a warp copies once");
  // An SM has 64 KiB or more in flight. Three stages of rows of 256 elements
  // would not fit for two blocks.
  static constexpr int kStages = kDim == 256 ? 2 : 3;
  static constexpr int kStageElements = 2 * kRows * kDim;
  static constexpr int kSteps = kDim / 16;  // of the tensor core, along a row
  static constexpr size_t kRowBytes =
      sizeof(T) * kWarps * kStages * kStageElements;
  // Four elements of padding keep the lanes that write one column apart.
  static constexpr int kResultStride = kDim + 4;
  static constexpr int kResultFloats = kWarps * 8 * kResultStride;
  static constexpr int kStatFloats = kWarps * 8 * 2;
  static constexpr size_t kSharedBytes =
      kRowBytes + sizeof(float) * (kResultFloats + kStatFloats);
  static_assert(kSharedBytes <= kMaxSharedBytes, "does not fit an SM");
};

// Returns the first rank of a list's tile.
SIMT_DEVICE int32_t RankOfTile(const AttentionList& list, int32_t tile) {
  return (list.FirstRead() / kDecodeTileRanks + tile) * kDecodeTileRanks;
}

// Copies a CTA's tiles to shared memory, ahead of their use and across lists:
// a new list does not drain the pipeline.
template <typename Shape, typename T, int kDim>
struct DecodeLoader {
  AttentionList list;
  int32_t list_index = -1;
  int32_t list_begin = 0;  // its first tile
  int32_t list_end = 0;
  int32_t tile = 0;  // the next one to copy
  int32_t end = 0;
  int32_t stage = 0;

  SIMT_DEVICE void Enter(const DecodeParams& params, int32_t index) {
    const int32_t sequence = Divide(index, params.pool.by_heads);
    list = LoadList(params.lists, params.pool.page_shift, sequence,
                    index - sequence * params.lists.num_heads);
    list_index = index;
    list_begin = params.tile_offsets[index];
    list_end = params.tile_offsets[index + 1];
  }

  // Copies the rows of this warp in the next tile. A call makes one copy group,
  // which is empty after the last tile.
  SIMT_DEVICE void CopyNext(const DecodeParams& params, T* rows) {
    if (tile < end) {
      if (tile == list_end) Enter(params, list_index + 1);
      const int32_t rank =
          RankOfTile(list, tile - list_begin) + WarpIndex() * Shape::kRows;
      T* const keys = rows + stage * Shape::kStageElements;
      CopyRankRows<kDim>(params.pool, list, params.lists.layer, rank, 0, keys,
                         keys + Shape::kRows * kDim);
      ++tile;
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    simt::CommitCopies();
  }
};

// The state of a warp for one list: O^T in the layout of accumulators (rows are
// elements, columns are query heads), and the softmax so far, in log2.
template <int kSteps, int kQTiles>
struct DecodeState {
  float output[kQTiles][kSteps][4];
  float max[kQTiles][2];
  float sum[kQTiles][2];  // of this lane's rows only

  SIMT_DEVICE void Reset() {
    SIMT_UNROLL
    for (int t = 0; t < kQTiles; ++t) {
      SIMT_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        SIMT_UNROLL
        for (int j = 0; j < 4; ++j) output[t][i][j] = 0.0f;
      }
      max[t][0] = max[t][1] = -INFINITY;
      sum[t][0] = sum[t][1] = 0.0f;
    }
  }
};

// Q^T as B operands: column n is query head n of the group, and zeros beyond
// the group. The operands stay in registers. For the largest shape the
// accumulators leave no room: this shape reads the operands again for every
// tile, from the first-level cache.
template <int kSteps, int kQTiles>
struct DecodeQueries {
  static constexpr bool kKept = kSteps * kQTiles <= 16;
  static constexpr int kWords = kSteps * 8;  // of a row, two elements each
  const uint32_t* rows[kQTiles];             // of this lane; null: no such head
  uint32_t kept[kQTiles][kKept ? kSteps : 1][2];

  SIMT_DEVICE void Load(const DecodeParams& params, int32_t list_index) {
    const int32_t lane = LaneIndex();
    const uint32_t* queries = static_cast<const uint32_t*>(params.queries) +
                              int64_t{list_index} * params.group_size * kWords;
    SIMT_UNROLL
    for (int t = 0; t < kQTiles; ++t) {
      const int32_t q_head = t * 8 + lane / 4;
      rows[t] = q_head < params.group_size
                    ? queries + q_head * kWords + lane % 4
                    : nullptr;
      if constexpr (kKept) {
        SIMT_UNROLL
        for (int i = 0; i < kSteps; ++i) Read(t, i, kept[t][i]);
      }
    }
  }
  SIMT_DEVICE void Read(int t, int i, uint32_t (&b)[2]) const {
    b[0] = rows[t] != nullptr ? rows[t][i * 8] : 0u;
    b[1] = rows[t] != nullptr ? rows[t][i * 8 + 4] : 0u;
  }
  SIMT_DEVICE void Get(int t, int i, uint32_t (&b)[2]) const {
    if constexpr (kKept) {
      b[0] = kept[t][i][0];
      b[1] = kept[t][i][1];
    } else {
      Read(t, i, b);
    }
  }
};

// Computes the logits of 16 rows and 8 query heads. A lane has the rows lane /
// 4 and lane / 4 + 8, and the heads 2 (lane % 4) and 2 (lane % 4) + 1.
template <typename T, int kDim, int kQTiles>
SIMT_DEVICE void DecodeLogits(const T* keys,
                              const DecodeQueries<kDim / 16, kQTiles>& queries,
                              float (&logits)[kQTiles][4]) {
  SIMT_UNROLL
  for (int t = 0; t < kQTiles; ++t) {
    logits[t][0] = logits[t][1] = logits[t][2] = logits[t][3] = 0.0f;
  }
  SIMT_UNROLL
  for (int i = 0; i < kDim / 16; ++i) {
    uint32_t a[4];
    LoadRowsA<kDim>(keys, 0, i, a);
    SIMT_UNROLL
    for (int t = 0; t < kQTiles; ++t) {
      uint32_t b[2];
      queries.Get(t, i, b);
      simt::Mma16816<T>(logits[t], a, b[0], b[1]);
    }
  }
}

template <int kQTiles>
SIMT_DEVICE void StoreLogits(const DecodeParams& params, int64_t first_row,
                             int32_t num_live,
                             const float (&logits)[kQTiles][4]) {
  const int32_t lane = LaneIndex();
  for (int t = 0; t < kQTiles; ++t) {
    for (int j = 0; j < 4; ++j) {
      const int32_t row = lane / 4 + (j / 2) * 8;
      const int32_t q_head = t * 8 + (lane % 4) * 2 + j % 2;
      if (row < num_live && q_head < params.group_size) {
        params.logits[(first_row + row) * params.group_size + q_head] =
            params.scale * logits[t][j];
      }
    }
  }
}

// Adds the live rows of 16 rows to the state: online softmax (Milakov and
// Gimelshein, 1805.02867), then O^T += V^T P.
template <typename T, int kDim, int kQTiles>
SIMT_DEVICE void DecodeRows(const T* values, const bool (&live)[2],
                            float scale_log2, float (&logits)[kQTiles][4],
                            DecodeState<kDim / 16, kQTiles>* state) {
  uint32_t b[kQTiles][2];
  SIMT_UNROLL
  for (int t = 0; t < kQTiles; ++t) {
    float weights[4];
    SIMT_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float low = live[0] ? logits[t][j] * scale_log2 : -INFINITY;
      const float high = live[1] ? logits[t][j + 2] * scale_log2 : -INFINITY;
      const float max = fmaxf(state->max[t][j], MaxOverRows(fmaxf(low, high)));
      const float base = FiniteMax(max);
      const float shrink = simt::Exp2(state->max[t][j] - base);
      state->max[t][j] = max;
      weights[j] = simt::Exp2(low - base);
      weights[j + 2] = simt::Exp2(high - base);
      state->sum[t][j] =
          state->sum[t][j] * shrink + (weights[j] + weights[j + 2]);
      SIMT_UNROLL
      for (int i = 0; i < kDim / 16; ++i) {
        state->output[t][i][j] *= shrink;
        state->output[t][i][j + 2] *= shrink;
      }
    }
    // An accumulator has its rows across lanes. A B operand has them down the
    // registers.
    b[t][0] =
        simt::MoveMatrixTransposed(simt::Pack2<T>(weights[0], weights[1]));
    b[t][1] =
        simt::MoveMatrixTransposed(simt::Pack2<T>(weights[2], weights[3]));
  }
  SIMT_UNROLL
  for (int i = 0; i < kDim / 16; ++i) {
    uint32_t a[4];
    LoadColumnsA<kDim>(values, 0, i, a);
    SIMT_UNROLL
    for (int t = 0; t < kQTiles; ++t) {
      simt::Mma16816<T>(state->output[t][i], a, b[t][0], b[t][1]);
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_CUH_
