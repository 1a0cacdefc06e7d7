// Decode attention over ragged per-head lists: one query token per sequence.
//
// A warp takes the 16 rows of (half) a page as the M side of the tensor core's
// m16n8k16 and the query heads of the group as its N side, so K and V are read
// once for the group and rows never pass through registers on their way from
// memory. Four warps share a tile of 64 ranks.
//
// Work is cut by tiles, not by lists (stream-K, Osama et al., 2301.03598;
// LeanAttention, 2405.10480): CTA c of n takes tiles [c T / n, (c + 1) T / n)
// of all lists together. What one CTA has of a list it shares with others goes
// to a slot of the workspace, and a second kernel merges the slots of a list in
// their order along it. There are no atomics: the same batch and grid give the
// same bits, always. With chunk_tiles > 0 lists are also cut every chunk_tiles
// tiles, whoever computes them, and merged by chunk: then the bits of a list
// depend on its own rows alone, not on batch or grid.
//
// Bytes: K and V once, 2 * 8 * head_dim floats of workspace per CTA (stream-K).
#ifndef KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_
#define KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

inline constexpr int32_t kDecodeThreads = 128;
// Ranks of a tile. Sizes of logits and tile_offsets depend on it.
inline constexpr int32_t kDecodeTileRanks = 64;
// Chunks of the batch-invariant mode: 512 ranks, so that partial results add
// at most 1.6 % to the bytes read at 4 query heads of 128.
inline constexpr int32_t kInvariantChunkTiles = 8;

struct DecodeParams {
  AttentionLists lists;
  PagedPool pool;
  // Exclusive prefix sums of DecodeTiles over the lists.
  const int32_t* tile_offsets = nullptr;  // [num_lists + 1]
  // Of the pool's element type; rows 16-byte aligned.
  const void* queries = nullptr;  // [num_sequences, num_q_heads, head_dim]
  void* output = nullptr;         // the same; 0 for an empty list
  // Natural log of the sum of exp(logit); -infinity for an empty list. May be
  // null.
  float* lse = nullptr;  // [num_sequences, num_q_heads]
  // scale * <q, k> of every live rank, for AddDecodeAttention; dead ranks are
  // not written. The rows of a list begin at 64 * its tile offset. May be null,
  // and is with a window.
  float* logits = nullptr;  // [64 * max_tiles, group_size]
  // Workspace of DecodeWorkspaceSlots slots, for max_tiles. A slot's rows are
  // the q_heads of a group rounded up to 8.
  float* partial_output = nullptr;  // [slots, q_rows, head_dim]
  float* partial_stats = nullptr;   // [slots, q_rows, {max, sum}] in log2
  int32_t group_size = 1;           // 1 .. 16
  int32_t num_ctas = 1;             // of the attention kernel's grid
  int32_t chunk_tiles = 0;          // 0: stream-K
  float scale = 1.0f;
  // Tiles that there is room for where logits, or chunks, take room of each. Of
  // lists with more, as lengths on the device may have become, nothing is
  // computed, and *error gets kTilesOutOfRoom; see RowError. Not null then.
  int32_t max_tiles = 0;
  uint32_t* error = nullptr;
};

// Tiles of a list, without those before the window if it has no region. Tiles
// begin at multiples of
// their size all the same. An empty list has one too: its output must be
// written.
inline int32_t DecodeTiles(int32_t region_length, int32_t tail_length,
                           int32_t page_size, int32_t window = 0) {
  const int32_t region_slots =
      (region_length + page_size - 1) / page_size * page_size;
  const int32_t num_ranks = region_slots + tail_length;
  const int32_t first_rank =
      window == 0 || num_ranks <= window || region_length > 0
          ? 0
          : num_ranks - window;
  const int32_t tiles = (num_ranks + kDecodeTileRanks - 1) / kDecodeTileRanks -
                        first_rank / kDecodeTileRanks;
  return tiles > 0 ? tiles : 1;
}

// Tile offsets from the lengths on the device. What appends tokens on the
// device need not come back to the host for a plan; without regions, one plan
// serves all layers of one window.
struct DecodePlanParams {
  AttentionLists lists;  // pages are not read
  Divider num_heads;
  int32_t page_shift = 4;
  int32_t* tile_offsets = nullptr;  // [num_lists + 1], out
};

// Slots of workspace. Chunk c of a list whose first tile is t has slot
// t / chunk_tiles + list + c: lists do not meet, for a list of n tiles has at
// most n / chunk_tiles + 1 chunks.
inline int64_t DecodeWorkspaceSlots(int64_t num_tiles, int64_t num_lists,
                                    int32_t num_ctas, int32_t chunk_tiles) {
  return chunk_tiles == 0 ? 2 * int64_t{num_ctas}
                          : num_tiles / chunk_tiles + num_lists + 1;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_
