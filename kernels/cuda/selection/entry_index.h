// From the tables of attention to lists of entries, on the device: what an
// eviction scores and selects from, without the host touching an entry.
//
// Two kernels. The first writes the entries of tails, which are in position
// order as they are. The second puts those of regions in order, for engines
// whose regions are not (those of PlaceSurvivors are), without a sort:
// positions of a list differ, so one bit each and how many bits are below say
// which place an entry has. A CTA does that for a list: O(region + cut / 32).
#ifndef KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_
#define KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

// 32 positions of a list: which its region holds, and how many before them.
struct IndexWord {
  uint32_t marks;
  uint32_t before;
};

// IndexEntries of blockmgr/compaction.h for several sequences, in one layer or
// in several that follow one another. List (layer * num_sequences + sequence) *
// num_heads + head of the result has its region's entries and then the first of
// its tail's: as many as offsets leave for them.
struct EntryIndexParams {
  // Of the first layer. Regions need their positions, all lists their cuts; a
  // window is not looked at.
  AttentionLists lists;
  int32_t num_layers = 1;
  // From one layer's region_lengths and region_offsets to the next's.
  int64_t region_stride = 0;
  int32_t num_blocks = 0;  // of the pool
  int32_t page_shift = 4;  // page_size = 1 << page_shift
  // From the host, which knows all lengths. [num_lists + 1]
  const int64_t* offsets = nullptr;
  // Work space, without regions none: for every list a word per 32 positions
  // below its sequence's cut. word_offsets, from the host, are sums of the
  // words of one list of each sequence, [num_sequences + 1]: lists have their
  // words in the order that they have entries, so there are num_layers *
  // num_heads * word_offsets[num_sequences]. Marks are zero, and zero again at
  // the end.
  const int64_t* word_offsets = nullptr;
  uint32_t* marks = nullptr;
  IndexWord* words = nullptr;
  // Results; see EntryLists.
  int64_t* slots = nullptr;      // [offsets[num_lists]]
  int32_t* positions = nullptr;  // [offsets[num_lists]]
  // Gets kPositionOutOfCut where a region names a position that is not below
  // its sequence's cut, and kOffsetsOutOfLists where offsets leave no room for
  // a region, or more than its tail has behind it; nothing is written for what
  // is too much. See RowError.
  uint32_t* error = nullptr;
};

// Of a CTA of either kernel, and entries of a tail that one writes.
inline constexpr int32_t kIndexThreads = 256;
inline constexpr int32_t kIndexTailEntries = 4 * kIndexThreads;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_
