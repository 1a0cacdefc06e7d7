// Entries that scores are computed for: plain data that the host fills and
// kernels read.
#ifndef KERNELS_CUDA_ENTRY_LISTS_H_
#define KERNELS_CUDA_ENTRY_LISTS_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

// How the CTAs of a kernel share lists: list l has those from offsets[l] on, as
// many as it has pieces, and without entries none. Grids are flat; one of
// {pieces of the longest list, lists} is mostly of CTAs that have nothing to do
// where one list is long.
struct ListSplits {
  const int32_t* offsets = nullptr;  // [num_lists + 1]
  int32_t count = 0;                 // offsets[num_lists]: what the host knows
};

// Live entries of some sequences in one layer: per list (sequence * num_heads +
// head) slots in ascending position order. A compacted region holds entries in
// another order than their positions, hence slots and not ranks.
struct EntryLists {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  const int64_t* offsets = nullptr;    // [num_lists + 1]
  const int64_t* slots = nullptr;      // [offsets[num_lists]]
  const int32_t* positions = nullptr;  // [offsets[num_lists]]
  ListSplits row_splits;               // of kRowSplitEntries
  ListSplits window_splits;            // of kSplitEntries
};

SIMT_HOST_DEVICE int32_t NumLists(const EntryLists& lists) {
  return lists.num_sequences * lists.num_heads;
}

// Entries that one CTA of a window's attention takes at a time, and how many
// such tiles it does. Fixed numbers, as all here, so that what is added up with
// what depends on the list alone.
inline constexpr int32_t kEntryTile = 64;
inline constexpr int32_t kSplitTiles = 16;
inline constexpr int32_t kSplitEntries = kEntryTile * kSplitTiles;

// Entries of a CTA of all others. One that goes through them row by row has so
// few that many CTAs read at once: 8 lists of 32,768 entries are 1,024 CTAs,
// and an H100 has room for eight of kRowSplitThreads and 64 registers on each
// of 132 multiprocessors.
inline constexpr int32_t kRowSplitEntries = 256;
inline constexpr int32_t kRowSplitThreads = 128;

// Entries whose rows one CTA multiplies with matrices, one for each thread.
inline constexpr int32_t kProductRows = kRowSplitEntries;
inline constexpr int32_t kProductThreads = kProductRows;

// ListSplits of lists that begin at offsets[0 .. num_lists], in pieces of
// split_entries, to out[0 .. num_lists]. Returns the last one.
inline int32_t FillSplitOffsets(const int64_t* offsets, int64_t num_lists,
                                int32_t split_entries, int32_t* out) {
  out[0] = 0;
  for (int64_t list = 0; list < num_lists; ++list) {
    const int64_t size = offsets[list + 1] - offsets[list];
    out[list + 1] = out[list] + static_cast<int32_t>(
                                    (size + split_entries - 1) / split_entries);
  }
  return out[num_lists];
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ENTRY_LISTS_H_
