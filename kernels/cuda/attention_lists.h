// The places of the rows that a head attends to: plain data that the host fills
// and kernels read. C++17, for any compiler.
#ifndef KERNELS_CUDA_ATTENTION_LISTS_H_
#define KERNELS_CUDA_ATTENTION_LISTS_H_

#include <cstdint>

#include "kernels/cuda/paged_pool.h"

namespace blockmgr {

// The element type of rows, queries and outputs.
enum class ElementType : int32_t { kBFloat16, kHalf };

// The shape of a row. It selects the instance of a kernel.
struct RowShape {
  ElementType type = ElementType::kBFloat16;
  int32_t head_dim = 128;
};

// The rows that the heads of one layer attend to. A list is the rows of one
// (sequence, head): list = sequence * num_heads + head. A list has the pages of
// the region, then the pages that the tail's block table implies. A rank counts
// slots along the pages. The slots of the region are rounded up to whole pages
// first. Rank r is live if
//
//   r < region_length  or  region_slots <= r < region_slots + tail_length,
//   region_slots = region_length rounded up to pages.
//
// Dead slots may hold any value, NaN included.
//
// With a window, a query attends to the last `window` positions up to its own.
// If the list has no region, these are the last `window` ranks, and pages that
// no query attends to are not read. If the list has a region, all rows of the
// region are read, and rows before the window get no weight.
struct AttentionLists {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  int32_t window = 0;  // 0 means all ranks
  // The row of each sequence of the launch in the tables below. Null means that
  // sequence i has row i. The tables can stay in place while sequences come and
  // go.
  const int32_t* sequence_slots = nullptr;  // [num_sequences]
  // Null if no sequence has a region. Then no array with values per head is
  // read.
  const int32_t* region_lengths = nullptr;  // [slots, num_heads]
  const int64_t* region_offsets = nullptr;  // [slots, num_heads]
  // Page ids. The pages of a list begin at its offset.
  const int32_t* region_pages = nullptr;
  // Read with a window only: the positions of the tokens in their slots,
  // page_size of them for each page of region_pages, and the position of each
  // tail's first token. REQUIRES: not null if there are regions and a window.
  const int32_t* region_positions = nullptr;
  const int32_t* cuts = nullptr;         // [slots]
  const int32_t* tail_blocks = nullptr;  // [slots, tail_stride]
  int64_t tail_stride = 0;
  const int32_t* tail_lengths = nullptr;  // [slots]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_LISTS_H_
