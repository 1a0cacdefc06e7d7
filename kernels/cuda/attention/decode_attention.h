// Decode attention over ragged per-head lists: one query token per sequence.
//
// A warp takes the 16 rows of a page (or of half a page) as the M side of the
// tensor core's m16n8k16, and the query heads of the group as its N side. K and
// V are therefore read once for the group, and rows go from memory to the
// tensor cores without passing through registers. Four warps share a tile of 64
// ranks.
//
// Work is divided by tiles, not by lists (stream-K, Osama et al., 2301.03598;
// LeanAttention, 2405.10480). T is the number of tiles of all lists together.
// CTA c of n takes the tiles [c T / n, (c + 1) T / n). If several CTAs share a
// list, each writes its part to a slot of the workspace. A second kernel merges
// the slots of a list in their order along the list. No atomics add floats: the
// same batch and grid always give the same bits. With chunk_tiles > 0 lists are
// also cut every chunk_tiles tiles and merged by chunk. The bits of a list then
// depend on its own rows alone, not on batch or grid.
//
// A block merges at most kMergeParts parts. A longer list is divided into
// groups of kMergeParts parts, with a block for each. The block that ends last
// merges the results of the groups, in order. The tree depends on the number of
// parts alone.
//
// Bytes: K and V once, and 2 * 8 * head_dim floats of workspace per CTA
// (stream-K), twice as many for groups of more than 8 query heads. The sum of a
// group takes the place of its first part.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_
#define KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

inline constexpr int32_t kDecodeThreads = 128;
// Ranks of a tile. The sizes of logits and tile_offsets depend on this number.
inline constexpr int32_t kDecodeTileRanks = 64;
// The chunk size of the batch-invariant mode, in tiles. With 512 ranks the
// partial results add at most 1.6 % to the bytes read, at 4 query heads of 128.
inline constexpr int32_t kInvariantChunkTiles = 8;
// The parts of a list that one block merges. A block adds up 32 parts at a
// time: with more of them, its chain of dependent loads would be longer.
inline constexpr int32_t kMergeParts = 32;

struct DecodeParams {
  AttentionLists lists;
  PagedPool pool;
  // The exclusive prefix sums of CountDecodeTiles over the lists.
  const int32_t* tile_offsets = nullptr;  // [num_lists + 1]
  // In the pool's element type. Rows are 16-byte aligned.
  const void* queries = nullptr;  // [num_sequences, num_q_heads, head_dim]
  // Learned sinks: logits without a value, of the layer's query heads, in the
  // units of scale * <q, k>. Each joins the denominator of its head once. May
  // be null: then there are none. -infinity means none for a head.
  const float* sinks = nullptr;  // [num_q_heads]
  // The shape of the queries. An empty list gets zeros.
  void* output = nullptr;
  // The natural logarithm of the sum of exp(logit) with the sink, so that
  // exp(logit - lse) is the weight of an entry. An empty list has its sink, or
  // -infinity without sinks. May be null.
  float* lse = nullptr;  // [num_sequences, num_q_heads]
  // The logits scale * <q, k> of every live rank, for AddDecodeAttention. Dead
  // ranks are not written. The rows of a list begin at 64 * its tile offset.
  // May be null. REQUIRES: null with a window.
  float* logits = nullptr;  // [64 * max_tiles, group_size]
  // The workspace of CountDecodeWorkspaceSlots slots, for max_tiles. A slot has
  // a row for each q_head of a group, rounded up to 8 rows.
  float* partial_output = nullptr;  // [slots, q_rows, head_dim]
  float* partial_stats = nullptr;   // [slots, q_rows, {max, sum}] in log2
  // Workspace of any content, not null. DecodeAttention sets it to 0.
  uint32_t* merge_counters = nullptr;  // [num_lists, group_size]
  int32_t group_size = 1;              // 1 .. 16
  int32_t num_ctas = 1;                // CTAs in the attention kernel's grid
  int32_t chunk_tiles = 0;             // 0 means stream-K
  float scale = 1.0f;
  // The number of tiles that the logits and the workspace have room for. If the
  // lists have more tiles, because lengths on the device have grown, nothing is
  // computed and *error gets kTilesOutOfRoom (RowError). `error` must not be
  // null if there are logits or chunks.
  int32_t max_tiles = 0;
  uint32_t* error = nullptr;
};

// Returns the number of tiles of a list. Without a region, tiles before the
// window do not count. Tiles begin at multiples of their size also with a
// window. An empty list has one tile, because its output must be written.
inline int32_t CountDecodeTiles(int32_t region_length, int32_t tail_length,
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

// Computes tile offsets from the lengths on the device. An engine that appends
// tokens on the device does not return to the host for a plan. Without regions,
// one plan serves all layers with the same window.
struct DecodePlanParams {
  AttentionLists lists;  // pages are not read
  Divider num_heads;
  int32_t page_shift = 4;
  int32_t* tile_offsets = nullptr;  // [num_lists + 1], out
};

// Returns the number of workspace slots. Chunk c of a list whose first tile is
// t has the slot t / chunk_tiles + list + c. The slots of two lists never meet,
// because a list of n tiles has at most n / chunk_tiles + 1 chunks.
inline int64_t CountDecodeWorkspaceSlots(int64_t num_tiles, int64_t num_lists,
                                         int32_t num_ctas,
                                         int32_t chunk_tiles) {
  return chunk_tiles == 0 ? 2 * int64_t{num_ctas}
                          : num_tiles / chunk_tiles + num_lists + 1;
}

// Returns the number of blocks that merge a query head of all lists: one for
// each list, and one for every further kMergeParts parts that there is room
// for.
inline int64_t CountMergeBlocks(int64_t max_tiles, int64_t num_lists,
                                int32_t num_ctas, int32_t chunk_tiles) {
  const int64_t most_parts =
      chunk_tiles == 0 ? num_ctas - 1 : max_tiles / chunk_tiles;
  return num_lists + most_parts / kMergeParts;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_ATTENTION_H_
