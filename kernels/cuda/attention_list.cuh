// The device side of attention_lists.h: turns ranks into addresses.
#ifndef KERNELS_CUDA_ATTENTION_LIST_CUH_
#define KERNELS_CUDA_ATTENTION_LIST_CUH_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns the K row of a page's first token.
SIMT_DEVICE const char* PageAddress(const PagedPool& pool, int32_t page) {
  return pool.RowOfPage(page, 0).key;
}

// Returns the K row of a slot. A slot may exceed 32 bits, a page id does not.
SIMT_DEVICE const char* SlotAddress(const PagedPool& pool, int64_t slot) {
  const int32_t offset =
      static_cast<int32_t>(slot) & ((1 << pool.page_shift) - 1);
  return PageAddress(pool, static_cast<int32_t>(slot >> pool.page_shift)) +
         offset * pool.token_stride;
}

// Returns a source address for a copy that reads nothing. The address is
// aligned to 16 bytes, which the address of a table need not be.
SIMT_DEVICE const char* Nowhere(const PagedPool& pool) {
  if (pool.base != nullptr) return pool.base;
  const char* const table = reinterpret_cast<const char*>(pool.layer_bases);
  return table - reinterpret_cast<uintptr_t>(table) % 16;
}

// One list, in registers.
struct AttentionList {
  const int32_t* region_pages = nullptr;
  const int32_t* region_positions = nullptr;  // by rank; null: no window
  const int32_t* tail_blocks = nullptr;
  int32_t region_length = 0;  // live ranks of the region
  int32_t region_slots = 0;   // its ranks
  int32_t num_ranks = 0;      // of region and tail
  // No query attends to ranks of the tail before first_rank. In a list without
  // a region these are ranks of the list.
  int32_t first_rank = 0;
  // With positions: a query that has num_ranks ranks up to its own attends to
  // the rows of the region from position position_shift + num_ranks on.
  int32_t position_shift = 0;
  int32_t head = 0;

  // Returns the first rank that tiles cover. Tiles before it are not read.
  SIMT_DEVICE int32_t FirstRead() const {
    return region_slots > 0 ? 0 : first_rank;
  }
};

// Returns the first rank of the tail that a query with num_ranks ranks up to
// its own attends to, or a lower rank.
SIMT_DEVICE int32_t FirstRank(const AttentionLists& lists, int32_t num_ranks) {
  return lists.window == 0 || num_ranks <= lists.window
             ? 0
             : num_ranks - lists.window;
}

// Loads the list as its last token attends to it.
SIMT_DEVICE AttentionList LoadList(const AttentionLists& lists,
                                   int32_t page_shift, int32_t sequence,
                                   int32_t head) {
  const int32_t slot = lists.sequence_slots == nullptr
                           ? sequence
                           : lists.sequence_slots[sequence];
  AttentionList list;
  list.head = head;
  if (lists.region_lengths != nullptr) {
    const int64_t index = int64_t{slot} * lists.num_heads + head;
    list.region_length = lists.region_lengths[index];
    list.region_pages = lists.region_pages + lists.region_offsets[index];
    const int32_t mask = (1 << page_shift) - 1;
    list.region_slots = (list.region_length + mask) & ~mask;
    if (lists.window > 0) {
      list.region_positions =
          lists.region_positions + (lists.region_offsets[index] << page_shift);
      list.position_shift = lists.cuts[slot] - list.region_slots - lists.window;
    }
  }
  list.tail_blocks = lists.tail_blocks + slot * lists.tail_stride;
  list.num_ranks = list.region_slots + lists.tail_lengths[slot];
  list.first_rank = FirstRank(lists, list.num_ranks);
  return list;
}

SIMT_DEVICE bool IsLive(const AttentionList& list, int32_t rank) {
  return rank < list.region_length ||
         (rank >= list.region_slots && rank < list.num_ranks);
}

// Returns the K row at `rank`. REQUIRES: rank < num_ranks.
SIMT_DEVICE const char* RankAddress(const PagedPool& pool,
                                    const AttentionList& list, int32_t layer,
                                    int32_t rank) {
  const int32_t offset = rank & ((1 << pool.page_shift) - 1);
  const char* page_address;
  if (rank < list.region_slots) {
    page_address =
        PageAddress(pool, list.region_pages[rank >> pool.page_shift]);
  } else {
    const int32_t page = (rank - list.region_slots) >> pool.page_shift;
    const int32_t block = list.tail_blocks[page];
    page_address = pool.Row(layer, block, list.head, 0).key;
  }
  return page_address + offset * pool.token_stride;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_LIST_CUH_
