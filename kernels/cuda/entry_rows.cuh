// Device side of entry_lists.h: tiles of rows, from slots to shared memory.
#ifndef KERNELS_CUDA_ENTRY_ROWS_CUH_
#define KERNELS_CUDA_ENTRY_ROWS_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/entry_lists.h"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The entries of one list.
struct EntrySpan {
  const int64_t* slots = nullptr;
  const int32_t* positions = nullptr;
  int64_t offset = 0;  // in arrays of all entries
  int32_t size = 0;

  // C. Entries at positions below `position`: they come first.
  SIMT_DEVICE int32_t CountBelow(int32_t position) const {
    return CountLeading(
        size, [&](int32_t entry) { return positions[entry] < position; });
  }
  // C. Entries before the last `window` tokens of a sequence of `length`: all
  // but its last ones, of which there are at most as many: positions are
  // distinct, and below the length.
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

// C. In flat grids of row_splits.count.
SIMT_DEVICE ListSplit FindRowSplit(const EntryLists& lists) {
  return FindSplit(lists.row_splits.offsets, NumLists(lists),
                   static_cast<int32_t>(simt::BlockX()));
}

// The slots of 16 entries from `begin` on, one to a lane; 0 from `end` on.
SIMT_DEVICE int64_t LoadSlot(const EntrySpan& entries, int32_t begin,
                             int32_t end) {
  const int32_t mine = begin + LaneIndex() % 16;
  return mine < end ? entries.slots[mine] : 0;
}

// Where the row of an entry below `end` begins; of others, what a copy of
// nothing may name.
SIMT_DEVICE const char* RowAddress(const PagedPool& pool, int32_t entry,
                                   int32_t end, int64_t slot) {
  return entry < end ? SlotAddress(pool, slot) : Nowhere(pool);
}

// Starts copies of 16 rows by one warp, those of the entries [begin, begin +
// 16) below `end`, zeros for the rest. address_of(row), executed by all lanes:
// the RowAddress of entry begin + row, or V's. Commits nothing. kDim elements,
// swizzled.
template <int kDim, typename T, typename AddressOf>
SIMT_DEVICE void CopyRows(const AddressOf& address_of, int32_t begin,
                          int32_t end, T* tile, int32_t first_row) {
  constexpr int kChunks = kDim / kChunk;
  SIMT_UNROLL
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int32_t element = i * 32 + LaneIndex();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    const char* const from = address_of(row);
    const bool live = begin + row < end;
    simt::CopyAsync16(tile + SwizzledChunk<kDim>(first_row + row, chunk),
                      live ? from + chunk * 16 : from, live);
  }
}

// The same of rows whose slots LoadSlot gave: K, or V, which is `shift` bytes
// further. Every lane finds the address of one row.
template <int kDim, typename T>
SIMT_DEVICE void CopyEntryRows(const PagedPool& pool, int64_t slot,
                               int32_t begin, int32_t end, int64_t shift,
                               T* tile, int32_t first_row) {
  const char* const mine =
      RowAddress(pool, begin + LaneIndex() % 16, end, slot) + shift;
  CopyRows<kDim>(
      [mine](int32_t row) {
        // Shuffles take numbers: NOLINTNEXTLINE(performance-no-int-to-ptr)
        return reinterpret_cast<const char*>(simt::Shuffle(
            reinterpret_cast<uint64_t>(mine), static_cast<uint32_t>(row)));
      },
      begin, end, tile, first_row);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ENTRY_ROWS_CUH_
