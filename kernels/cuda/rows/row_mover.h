// Copies of K and V rows on the device: what append, read-back, copy-on-write,
// compaction and swap have in common. Parameters of the kernels in
// row_mover.cuh; plain data, C++17. All pointers are device memory.
//
// Every operation copies num_rows pairs of a K row and a V row, and the slot's
// token position where both sides keep one. Nothing is written for a pair whose
// source or destination is not inside the pool: a bit of *error is set instead.
// Destinations must differ from each other and from all sources of a call,
// except for moves with staging.
#ifndef KERNELS_CUDA_ROWS_ROW_MOVER_H_
#define KERNELS_CUDA_ROWS_ROW_MOVER_H_

#include <cstdint>

#include "kernels/cuda/paged_pool.h"

namespace blockmgr {

// Bits of the error word; row_error.h has words for them.
enum RowError : uint32_t {
  kSlotOutOfPool = 1,
  kBlockOutOfPool = 2,
  kPageOutOfPool = 4,
  // Of entry_index.h.
  kPositionOutOfCut = 8,
  kOffsetsOutOfLists = 16,  // and of pooled_scores.h
  // Of decode_attention.h and pooled_scores.h.
  kTilesOutOfRoom = 32,
};

// How many rows there are: `count`, or *device_count when only the device knows
// (then `count` bounds it, and sizes the launch).
struct RowCount {
  int64_t count = 0;
  const int64_t* device_count = nullptr;
};

// New rows of one layer, written to tail slots. Rows are given in the pool's
// elements, or as float to be rounded to them.
struct AppendRows {
  PagedPool pool;
  int32_t layer = 0;
  int64_t num_tokens = 0;
  // Per token: block * page_size + offset; -1 skips the token (padding).
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;     // [num_tokens], or null
  // [num_tokens, num_heads, head_dim]; strides in bytes, so that parts of a
  // fused QKV tensor will do. Multiples of 16.
  const char* keys = nullptr;
  const char* values = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  uint32_t* error = nullptr;
};

// Rows of any slots, packed: row i of `out` is slots[i]. In the pool's elements
// or as float.
struct GatherRows {
  PagedPool pool;
  RowCount rows;
  const int64_t* slots = nullptr;  // [rows]
  char* out = nullptr;             // [rows, 2, head_dim]
  int32_t* positions = nullptr;    // [rows], or null
  uint32_t* error = nullptr;
};

// As SlotMove of base/moves.h.
struct RowMove {
  int64_t source;
  int64_t destination;
};

// Moves of a compaction. Without staging, one kernel copies each row straight
// to its destination. With staging, one kernel copies all rows to `staged`, and
// a second one copies them from there to their destinations; then a slot may be
// both the source of a move and the destination of another.
struct MoveRows {
  PagedPool pool;
  RowCount rows;
  const RowMove* moves = nullptr;       // [rows]
  char* staged = nullptr;               // [rows, 2, row_bytes], or null
  int32_t* staged_positions = nullptr;  // [rows]; null: of a pool without them
  uint32_t* error = nullptr;
};

// As BlockCopy of base/moves.h.
struct BlockPair {
  int32_t source;
  int32_t destination;
};

// Whole blocks, all layers and heads (copy-on-write). REQUIRES: their pages are
// less than 2^31, as those of any pool are.
struct CopyBlockRows {
  PagedPool pool;
  int64_t num_pairs = 0;
  const BlockPair* pairs = nullptr;  // [num_pairs]
  uint32_t* error = nullptr;
};

// Whole pages to or from contiguous memory (swap). Staged page i is
// [K, V][page_size][row_bytes] whatever the pool's strides are.
struct StagePages {
  PagedPool pool;
  int64_t num_pages = 0;
  const int32_t* pages = nullptr;  // [num_pages]
  char* staged = nullptr;          // [num_pages, 2, page_size, row_bytes]
  int32_t* positions = nullptr;    // [num_pages, page_size], or null
  uint32_t* error = nullptr;
};

// What happens to elements on the way.
enum class RowConversion {
  kNone,             // bytes are copied
  kFloatToBFloat16,  // append
  kFloatToHalf,      // append
  kBFloat16ToFloat,  // gather
  kHalfToFloat,      // gather
};

// Threads of a block, pairs whose addresses a warp finds at a time, those of
// them in flight, and blocks that a multiprocessor holds at once. Those leave
// 64 registers to a thread, too few for twice as many pairs in flight.
inline constexpr uint32_t kRowMoverThreads = 256;
inline constexpr uint32_t kRowsPerWarp = 8;
inline constexpr uint32_t kRowsInFlight = 4;
inline constexpr uint32_t kRowBlocksPerProcessor = 4;
inline constexpr uint32_t kRowsPerBlock =
    kRowMoverThreads / simt::kWarpThreads * kRowsPerWarp;

// Blocks for so many pairs: enough for all at once, at most max_blocks.
SIMT_HOST_DEVICE uint32_t RowMoverBlocks(int64_t num_rows,
                                         uint32_t max_blocks) {
  const int64_t blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks < 1) return 1;
  return blocks < max_blocks ? static_cast<uint32_t>(blocks) : max_blocks;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROWS_ROW_MOVER_H_
