// The part of a tail's block table that kernels get. Host code.
#ifndef KERNELS_CUDA_HOST_TAIL_PART_H_
#define KERNELS_CUDA_HOST_TAIL_PART_H_

#include <algorithm>
#include <cstdint>

#include "blockmgr/base/bits.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/chunk_attention.h"
#include "kernels/cuda/attention/decode_attention.h"

namespace blockmgr {

static_assert(kChunkRanks == kDecodeTileRanks, "TailPart counts tiles of both");

// Without a window, and behind a region, the part is the whole table. The part
// begins with a whole tile, so that its tiles are tiles of the tail.
struct TailPart {
  int32_t begin = 0;       // first page
  int32_t first_page = 0;  // the first page that a query attends to; earlier
                           // ids are not read
  int32_t end = 0;
  int32_t length = 0;  // tokens from page `begin` on

  int32_t num_pages() const { return end - begin; }

  // Returns the part for the last num_queries tokens of a sequence.
  static TailPart Of(const SequenceKv& sequence, int32_t num_queries,
                     int32_t window, int32_t page_size) {
    const int32_t length = sequence.tail_length;
    TailPart tail;
    tail.end = CeilDiv(length, page_size);
    tail.length = length;
    // Behind a region no page has fallen out of the window yet.
    if (window == 0 || sequence.region_pages != nullptr) return tail;
    const int32_t first = std::max(0, length - num_queries + 1 - window);
    tail.begin = first / kChunkRanks * (kChunkRanks / page_size);
    tail.first_page = first / page_size;
    tail.length -= tail.begin * page_size;
    return tail;
  }
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_TAIL_PART_H_
