// Where the rows are that a head attends: plain data that the host fills and
// kernels read. Compiles as C++17 with any compiler.
#ifndef KERNELS_CUDA_ATTENTION_LISTS_H_
#define KERNELS_CUDA_ATTENTION_LISTS_H_

#include <cstdint>

#include "kernels/cuda/pool_view.h"

namespace blockmgr {

// Division by a number known to the host: n / d = (n * multiplier) >> shift,
// exact for 0 <= n < 2^31 (Granlund and Montgomery, 1994: the multiplier is
// 2^shift / d rounded up, with 31 + ceil(log2 d) bits of shift).
struct Divider {
  uint32_t divisor = 1;
  uint32_t multiplier = 1u << 31;
  uint32_t shift = 31;
};

// REQUIRES: 0 < divisor < 2^31.
inline Divider MakeDivider(uint32_t divisor) {
  uint32_t log2 = 0;
  while ((uint64_t{1} << log2) < divisor) ++log2;
  Divider result;
  result.divisor = divisor;
  result.shift = 31 + log2;
  // At most 2^32 - 1: only powers of two reach 2^shift / d = 2^31 exactly.
  result.multiplier = static_cast<uint32_t>(
      ((uint64_t{1} << result.shift) + divisor - 1) / divisor);
  return result;
}

// What rows, queries and outputs consist of.
enum class ElementType : int32_t { kBFloat16, kHalf };

// What picks a kernel's instance.
struct RowShape {
  ElementType type = ElementType::kBFloat16;
  int32_t head_dim = 128;
};

// The pool, and what makes the way from page ids to addresses short.
struct PagedPool {
  PoolView view;  // token positions are not used
  Divider num_heads;
  Divider num_blocks;
  int32_t page_shift = 4;  // page_size = 1 << page_shift
};

// REQUIRES: view.page_size is 16 or 32.
inline PagedPool MakePagedPool(const PoolView& view) {
  PagedPool pool;
  pool.view = view;
  pool.num_heads = MakeDivider(static_cast<uint32_t>(view.num_heads));
  pool.num_blocks = MakeDivider(static_cast<uint32_t>(view.num_blocks));
  pool.page_shift = view.page_size == 16 ? 4 : 5;
  return pool;
}

// What the heads of one layer attend. A list is the rows of one (sequence,
// head), list = sequence * num_heads + head: the pages of its region, then
// those that its tail's block table implies. Ranks count slots along the
// pages, those of the region rounded up to whole pages first: rank r is live if
//
//   r < region_length  or  region_slots <= r < region_slots + tail_length,
//   region_slots = region_length rounded up to pages.
//
// Dead slots may hold anything, NaN included. With a window, a query attends to
// the last `window` positions up to its own. Where the list has no region these
// are ranks, and pages that no query attends to are not looked at; the rows of
// a region, in no order, are all read, and those before the window get no
// weight.
struct AttentionLists {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  int32_t window = 0;  // 0: all ranks
  // Row of each sequence of the launch in the tables below; null: its own
  // number. Tables keep their address while sequences come and go.
  const int32_t* sequence_slots = nullptr;  // [num_sequences]
  // Null: no sequence has a region, and nothing per head is read.
  const int32_t* region_lengths = nullptr;  // [slots, num_heads]
  const int64_t* region_offsets = nullptr;  // [slots, num_heads]
  // Page ids; those of a list begin at its offset.
  const int32_t* region_pages = nullptr;
  // With a window: positions of the tokens in their slots, page_size for every
  // page of region_pages, and of each tail's first token. REQUIRES: not null
  // where there are regions and a window.
  const int32_t* region_positions = nullptr;
  const int32_t* cuts = nullptr;         // [slots]
  const int32_t* tail_blocks = nullptr;  // [slots, tail_stride]
  int64_t tail_stride = 0;
  const int32_t* tail_lengths = nullptr;  // [slots]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_LISTS_H_
