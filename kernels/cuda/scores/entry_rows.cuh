// The device side of entry_lists.h: loads tiles of rows from slots to shared
// memory.
#ifndef KERNELS_CUDA_SCORES_ENTRY_ROWS_CUH_
#define KERNELS_CUDA_SCORES_ENTRY_ROWS_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The entries of one list.
struct EntrySpan {
  const int64_t* slots = nullptr;
  const int32_t* positions = nullptr;
  int64_t offset = 0;  // in arrays of all entries
  int32_t size = 0;

  // C. Returns the number of entries at positions below `position`. They come
  // first.
  SIMT_DEVICE int32_t CountBelow(int32_t position) const {
    return CountLeading(
        size, [&](int32_t entry) { return positions[entry] < position; });
  }
  // C. Returns the number of entries before the last `window` tokens of a
  // sequence of `length`. The other entries are the last ones. There are at
  // most `window` of them, because positions are distinct and below the length.
  SIMT_DEVICE int32_t CountPast(int32_t length, int32_t window) const {
    const int32_t sure = size > window ? size - window : 0;
    return sure + CountLeading(size - sure, [&](int32_t entry) {
             return positions[sure + entry] < length - window;
           });
  }
};

SIMT_DEVICE EntrySpan LoadEntries(const EntryLists& lists, int32_t list) {
  EntrySpan span;
  span.offset = lists.offsets[list];
  span.size = static_cast<int32_t>(lists.offsets[list + 1] - span.offset);
  span.slots = lists.slots + span.offset;
  span.positions = lists.positions + span.offset;
  return span;
}

// C. Finds the piece of a CTA in flat grids of row_splits.count.
SIMT_DEVICE ListSplit FindRowSplit(const EntryLists& lists) {
  return FindSplit(lists.row_splits.offsets, CountLists(lists),
                   static_cast<int32_t>(simt::BlockX()));
}

// Loads the slots of 16 entries from `begin` on, one per lane. Lanes from `end`
// on get 0.
SIMT_DEVICE int64_t LoadSlot(const EntrySpan& entries, int32_t begin,
                             int32_t end) {
  const int32_t mine = begin + LaneIndex() % 16;
  return mine < end ? entries.slots[mine] : 0;
}

// Starts copies of 16 rows by one warp: the K rows (or V rows, `shift` bytes
// further) of the entries [begin, begin + 16) below `end`, whose slots LoadSlot
// returned. The other rows become zeros. Every lane finds the address of one
// row. Rows have kDim elements and are swizzled. Does not commit the copies.
template <int kDim, typename T>
SIMT_DEVICE void CopyEntryRows(const PagedPool& pool, int64_t slot,
                               int32_t begin, int32_t end, int64_t shift,
                               T* tile, int32_t first_row) {
  constexpr int kChunks = kDim / kChunk;
  const int32_t mine = begin + LaneIndex() % 16;
  const char* const row_address =
      mine < end ? SlotAddress(pool, slot) + shift : Nowhere(pool);
  SIMT_UNROLL
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int32_t element = i * 32 + LaneIndex();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    // Shuffles take numbers: NOLINTNEXTLINE(performance-no-int-to-ptr)
    const char* const from = reinterpret_cast<const char*>(simt::Shuffle(
        reinterpret_cast<uint64_t>(row_address), static_cast<uint32_t>(row)));
    const bool live = begin + row < end;
    simt::CopyAsync16(tile + SwizzledChunk<kDim>(first_row + row, chunk),
                      live ? from + chunk * 16 : from, live);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ENTRY_ROWS_CUH_
