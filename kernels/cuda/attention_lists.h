// Where the rows are that a head attends: plain data that the host fills and
// kernels read. Compiles as C++17 with any compiler.
#ifndef KERNELS_CUDA_ATTENTION_LISTS_H_
#define KERNELS_CUDA_ATTENTION_LISTS_H_

#include <cstdint>

#include "kernels/cuda/paged_pool.h"

namespace blockmgr {

// What rows, queries and outputs consist of.
enum class ElementType : int32_t { kBFloat16, kHalf };

// What picks a kernel's instance.
struct RowShape {
  ElementType type = ElementType::kBFloat16;
  int32_t head_dim = 128;
};

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
// a region are all read, and those before the window get no weight.
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
