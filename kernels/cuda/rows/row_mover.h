// Copies of K and V rows on the device: append, read-back, copy-on-write,
// compaction and swap. This header has the parameters of the kernels in
// row_mover.cuh. Plain data, C++17. All pointers are device memory.
//
// Every operation copies num_rows pairs of a K row and a V row. It also copies
// the slot's token position if both sides keep positions. If the source or the
// destination of a pair is outside the pool, the pair is not written and a bit
// of *error is set. The destinations of a call must differ from each other and
// from all its sources. Moves with staging may have a destination that is also
// a source.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_H_
#define KERNELS_CUDA_ROWS_ROW_MOVER_H_

#include <cstdint>

#include "kernels/cuda/paged_pool.h"

namespace blockmgr {

// The bits of the error word. RowErrorText (row_error.h) turns them into text.
enum RowError : uint32_t {
  kSlotOutOfPool = 1,
  kBlockOutOfPool = 2,
  kPageOutOfPool = 4,
  kPositionOutOfCut = 8,    // entry_index.h
  kOffsetsOutOfLists = 16,  // entry_index.h, pooled_scores.h, select.h
  kTilesOutOfRoom = 32,     // decode_attention.h, pooled_scores.h
};

// The number of rows: *device_count if device_count is not null, otherwise
// `count`. With device_count, `count` is an upper bound and sizes the launch.
struct RowCount {
  int64_t count = 0;
  const int64_t* device_count = nullptr;
};

// New rows of one layer, to be written to slots of tails. The rows are given in
// the pool's elements, or as float to be rounded to the pool's elements.
struct AppendRows {
  PagedPool pool;
  int32_t layer = 0;
  int64_t num_tokens = 0;
  // Per token: block * page_size + offset. -1 skips the token (padding).
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens], or null
  // [num_tokens, num_heads, head_dim]. Strides are in bytes, so that parts of a
  // fused QKV tensor can be passed. They are multiples of 16.
  const char* keys = nullptr;
  const char* values = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  uint32_t* error = nullptr;
};

// Packs the rows of any slots: row i of `out` is slots[i], in the pool's
// elements or as float.
struct GatherRows {
  PagedPool pool;
  RowCount rows;
  const int64_t* slots = nullptr;  // [rows]
  char* out = nullptr;             // [rows, 2, head_dim]
  int32_t* positions = nullptr;    // [rows], or null
  uint32_t* error = nullptr;
};

// SlotMove of base/moves.h, for the device.
struct RowMove {
  int64_t source;
  int64_t destination;
};

// The moves of a compaction. Without staging, one kernel copies each row to its
// destination. With staging, one kernel copies all rows to `staged`, and a
// second kernel copies them from there to their destinations. A slot may then
// be the source of one move and the destination of another.
struct MoveRows {
  PagedPool pool;
  RowCount rows;
  const RowMove* moves = nullptr;       // [rows]
  char* staged = nullptr;               // [rows, 2, row_bytes], or null
  int32_t* staged_positions = nullptr;  // [rows], or null without positions
  uint32_t* error = nullptr;
};

// BlockCopy of base/moves.h, for the device.
struct BlockPair {
  int32_t source;
  int32_t destination;
};

// Copies whole blocks, all layers and heads (copy-on-write). REQUIRES: the
// blocks have less than 2^31 pages, as every pool has.
struct CopyBlockRows {
  PagedPool pool;
  int64_t num_pairs = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs]
  uint32_t* error = nullptr;
};

// Copies whole pages to or from contiguous memory (swap). Staged page i is [K,
// V][page_size][row_bytes] for all strides of the pool.
struct StagePages {
  PagedPool pool;
  int64_t num_pages = 0;
  const int32_t* pages = nullptr;  // [num_pages]
  char* staged = nullptr;          // [num_pages, 2, page_size, row_bytes]
  int32_t* positions = nullptr;    // [num_pages, page_size], or null
  uint32_t* error = nullptr;
};

// The conversion of elements during a copy.
enum class RowConversion {
  kNone,             // bytes are copied
  kFloatToBFloat16,  // append
  kFloatToHalf,      // append
  kBFloat16ToFloat,  // gather
  kHalfToFloat,      // gather
};

// The threads of a block, the pairs whose addresses a warp finds at a time, the
// pairs in flight, and the blocks that a multiprocessor holds at once. So many
// blocks leave 64 registers per thread, too few for twice as many pairs in
// flight.
inline constexpr uint32_t kRowMoverThreads = 256;
inline constexpr uint32_t kRowsPerWarp = 8;
inline constexpr uint32_t kRowsInFlight = 4;
inline constexpr uint32_t kRowBlocksPerProcessor = 4;
inline constexpr uint32_t kRowsPerBlock =
    kRowMoverThreads / simt::kWarpThreads * kRowsPerWarp;

// Returns the number of blocks for so many pairs: enough for all pairs at once,
// at most max_blocks.
SIMT_HOST_DEVICE uint32_t RowMoverBlocks(int64_t num_rows,
                                         uint32_t max_blocks) {
  const int64_t blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks < 1) return 1;
  return blocks < max_blocks ? static_cast<uint32_t>(blocks) : max_blocks;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_H_
