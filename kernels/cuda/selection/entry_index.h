// Turns the tables of attention into lists of entries, on the device. An
// eviction scores these entries and selects from them. The host handles no
// entry.
//
// There are two kernels. The first kernel writes the entries of tails, which
// stand in position order. The second kernel puts the entries of regions in
// order, for engines whose regions are not in order (regions of PlaceSurvivors
// are). It does not sort: the positions of a list differ, so it marks one bit
// per position and counts the bits below to find the place of an entry. One CTA
// does this for a list. Cost: O(region + cut / 32).
//
// For long lists three kernels do this, in a CTA per chunk of a list: one
// marks, one counts, one finds the places. A CTA that counts reads all marks of
// its list that are before its own. These are bits, so the CTAs of a million
// positions read 32 MB in all, most of it from the second-level cache.
#ifndef KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_
#define KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/list_splits.h"

namespace blockmgr {

// 32 positions of a list: a bit for each position that the region holds, and
// the number of bits in earlier words.
struct IndexWord {
  uint32_t marks;
  uint32_t before;
};

// IndexEntries of blockmgr/compaction.h for several sequences, in one layer or
// in several consecutive layers. List (layer * num_sequences + sequence) *
// num_heads + head of the result has the entries of its region, then the first
// entries of its tail, as many as `offsets` leaves room for.
struct EntryIndexParams {
  // The lists of the first layer. Regions need positions, and all lists need
  // cuts. The window is not read.
  AttentionLists lists;
  int32_t num_layers = 1;
  // The distance from one layer's region_lengths and region_offsets to the next
  // layer's.
  int64_t region_stride = 0;
  int32_t num_blocks = 0;  // blocks of the pool
  int32_t page_shift = 4;  // page_size = 1 << page_shift
  // [num_lists + 1]. The host fills them, because it knows all lengths.
  const int64_t* offsets = nullptr;
  // Null, or the chunks of kIndexChunkEntries entries of each list, for CTAs of
  // regions. Worth it if a list has more than kIndexWholeEntries entries.
  ListSplits chunks = {};
  // Workspace; not needed without regions. Each list has one word per 32
  // positions below its sequence's cut. word_offsets is filled by the host: the
  // sums of the words of one list of each sequence, [num_sequences + 1]. The
  // words of lists have the order of their entries. There are num_layers *
  // num_heads * word_offsets[num_sequences] words. Marks must be zero, and are
  // zero again at the end.
  const int64_t* word_offsets = nullptr;
  uint32_t* marks = nullptr;
  IndexWord* words = nullptr;
  // The results; see EntryLists.
  int64_t* slots = nullptr;      // [offsets[num_lists]]
  int32_t* positions = nullptr;  // [offsets[num_lists]]
  // Gets kPositionOutOfCut if a region names a position that is not below its
  // sequence's cut. Gets kOffsetsOutOfLists if offsets leave no room for a
  // region, or leave more room than the tail has entries for. The entries
  // beyond are not written. See RowError.
  uint32_t* error = nullptr;
};

// The threads of a CTA of all kernels, and the entries of a tail that one CTA
// writes.
inline constexpr int32_t kIndexThreads = 256;
inline constexpr int32_t kIndexTailEntries = 4 * kIndexThreads;
// The places of a region that one CTA reads at once. If no list is longer than
// kIndexWholeEntries, two launches more are expected to take longer than they
// save. The number is not timed on a GPU yet.
inline constexpr int32_t kIndexChunkEntries = 8 * kIndexThreads;
inline constexpr int32_t kIndexWholeEntries = 4 * kIndexChunkEntries;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_ENTRY_INDEX_H_
