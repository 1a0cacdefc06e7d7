// The entries that scores are computed for: plain data that the host fills and
// kernels read.
#ifndef KERNELS_CUDA_SCORES_ENTRY_LISTS_H_
#define KERNELS_CUDA_SCORES_ENTRY_LISTS_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/list_splits.h"

namespace blockmgr {

// The live entries of some sequences in one layer: per list (sequence *
// num_heads + head) the slots in ascending position order.
struct EntryLists {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  const int64_t* offsets = nullptr;    // [num_lists + 1]
  const int64_t* slots = nullptr;      // [offsets[num_lists]]
  const int32_t* positions = nullptr;  // [offsets[num_lists]]
  // A list without entries has no splits.
  ListSplits row_splits;     // splits of kRowSplitEntries entries
  ListSplits window_splits;  // splits of kSplitEntries entries
};

SIMT_HOST_DEVICE int32_t CountLists(const EntryLists& lists) {
  return lists.num_sequences * lists.num_heads;
}

// The entries that one CTA of a window's attention takes at a time, and the
// number of such tiles that it takes. The numbers are fixed, as all numbers
// here, so that the order of additions depends on the list alone.
inline constexpr int32_t kEntryTile = 64;
inline constexpr int32_t kSplitTiles = 16;
inline constexpr int32_t kSplitEntries = kEntryTile * kSplitTiles;

// The entries of a CTA in all other kernels. A CTA that goes through its
// entries row by row has few entries, so that many CTAs read at once: 8 lists
// of 32,768 entries are 1,024 CTAs. Each of the 132 multiprocessors of an H100
// has room for eight CTAs of kRowSplitThreads threads with 64 registers.
inline constexpr int32_t kRowSplitEntries = 256;
inline constexpr int32_t kRowSplitThreads = 128;

// The entries whose rows one CTA multiplies by matrices, one entry per thread.
inline constexpr int32_t kProductRows = kRowSplitEntries;
inline constexpr int32_t kProductThreads = kProductRows;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ENTRY_LISTS_H_
