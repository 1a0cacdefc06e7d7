// Entries that scores are computed for: plain data that the host fills and
// kernels read.
#ifndef KERNELS_CUDA_SCORES_ENTRY_LISTS_H_
#define KERNELS_CUDA_SCORES_ENTRY_LISTS_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/list_splits.h"

namespace blockmgr {

// Live entries of some sequences in one layer: per list (sequence * num_heads +
// head) slots in ascending position order.
struct EntryLists {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  const int64_t* offsets = nullptr;    // [num_lists + 1]
  const int64_t* slots = nullptr;      // [offsets[num_lists]]
  const int32_t* positions = nullptr;  // [offsets[num_lists]]
  // Lists without entries have none.
  ListSplits row_splits;     // of kRowSplitEntries
  ListSplits window_splits;  // of kSplitEntries
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

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ENTRY_LISTS_H_
