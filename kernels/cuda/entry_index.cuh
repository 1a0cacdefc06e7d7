// Kernels of entry_index.h.
#ifndef KERNELS_CUDA_ENTRY_INDEX_CUH_
#define KERNELS_CUDA_ENTRY_INDEX_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/entry_index.h"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/row_mover.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The list of a CTA: where it is, and where its entries go.
struct IndexedList {
  AttentionList list;
  int32_t layer = 0;
  int32_t cut = 0;    // of its sequence
  int64_t index = 0;  // among all lists
  int64_t begin = 0;  // of its entries
  int64_t size = 0;
  const int32_t* region_positions = nullptr;  // by rank
};

// Grids are {lists of a layer, .., layers}.
SIMT_DEVICE IndexedList LoadIndexedList(const EntryIndexParams& params) {
  AttentionLists lists = params.lists;
  const int32_t layer = static_cast<int32_t>(simt::BlockZ());
  const int32_t in_layer = static_cast<int32_t>(simt::BlockX());
  const int32_t sequence = in_layer / lists.num_heads;
  const int32_t head = in_layer - sequence * lists.num_heads;
  const int32_t slot = lists.sequence_slots == nullptr
                           ? sequence
                           : lists.sequence_slots[sequence];
  lists.window = 0;
  IndexedList result;
  if (lists.region_lengths != nullptr) {
    lists.region_lengths += layer * params.region_stride;
    lists.region_offsets += layer * params.region_stride;
    const int64_t pages =
        lists.region_offsets[int64_t{slot} * lists.num_heads + head];
    result.region_positions =
        lists.region_positions + (pages << params.page_shift);
  }
  result.list = LoadList(lists, params.page_shift, sequence, head);
  result.layer = lists.layer + layer;
  result.cut = lists.cuts[slot];
  result.index =
      int64_t{layer} * lists.num_sequences * lists.num_heads + in_layer;
  result.begin = params.offsets[result.index];
  result.size = params.offsets[result.index + 1] - result.begin;
  return result;
}

// Grid: {lists of a layer; entries of the longest tail / kIndexTailEntries,
// rounded up; layers}.
SIMT_KERNEL(kIndexThreads, 4)
void IndexTails(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  const IndexedList mine = LoadIndexedList(params);
  const AttentionList& list = mine.list;
  const int64_t num_tail = mine.size - list.region_length;
  const int64_t tail_length = list.num_ranks - list.region_slots;
  const int64_t first = int64_t{simt::BlockY()} * kIndexTailEntries;
  const bool fits = num_tail >= 0 && num_tail <= tail_length;
  if (!fits && first == 0 && simt::ThreadIndex() == 0) {
    simt::AtomicOr(params.error, static_cast<uint32_t>(kOffsetsOutOfLists));
  }
  const int64_t end = num_tail < tail_length ? num_tail : tail_length;
  const int32_t mask = (1 << params.page_shift) - 1;
  SIMT_UNROLL
  for (int32_t turn = 0; turn < kIndexTailEntries / kIndexThreads; ++turn) {
    const int64_t i = first + turn * kIndexThreads + simt::ThreadIndex();
    if (i >= end) return;
    const int64_t block = list.tail_blocks[i >> params.page_shift];
    const int64_t page = (int64_t{mine.layer} * params.num_blocks + block) *
                             params.lists.num_heads +
                         (BM_PLANTED(kIndexForgetsHead) ? 0 : list.head);
    const int64_t entry = mine.begin + list.region_length + i;
    params.slots[entry] = (page << params.page_shift) + (i & mask);
    params.positions[entry] = mine.cut + static_cast<int32_t>(i);
  }
}

// Grid: {lists of a layer; 1; layers}. Shared memory: kPrefixSharedBytes.
SIMT_KERNEL(kIndexThreads, 4)
void IndexRegions(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  static_assert(kIndexThreads == kPrefixThreads);
  const IndexedList mine = LoadIndexedList(params);
  const int32_t num_region = mine.list.region_length;
  if (num_region == 0) return;
  uint32_t* const marks = params.marks + mine.index * params.num_words;
  IndexWord* const words = params.words + mine.index * params.num_words;
  const auto is_inside = [&](int32_t position) {
    return position >= 0 && position < mine.cut &&
           position / 32 < params.num_words;
  };
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  for (int32_t i = thread; i < num_region; i += kIndexThreads) {
    const int32_t position = mine.region_positions[i];
    if (is_inside(position)) {
      simt::AtomicOr(marks + position / 32, 1u << (position % 32));
    } else {
      simt::AtomicOr(params.error, static_cast<uint32_t>(kPositionOutOfCut));
    }
  }
  if (!BM_PLANTED(kIndexNoBarrierAfterMarks)) simt::SyncBlock();
  const int64_t num_words = (mine.cut + 31) / 32 < params.num_words
                                ? (mine.cut + 31) / 32
                                : params.num_words;
  uint32_t before = 0;
  for (int64_t first = 0; first < num_words; first += kIndexThreads) {
    const int64_t i = first + thread;
    // Exchanged, not loaded: from where the atomics went, and back to zero.
    const uint32_t found =
        i < num_words ? simt::AtomicExchange(marks + i, 0u) : 0;
    uint32_t total;
    const uint32_t lower =
        BlockPrefix(static_cast<uint32_t>(simt::PopCount(found)), 0, &total);
    if (i < num_words) words[i] = {found, before + lower};
    if (!BM_PLANTED(kIndexForgetsEarlierWords)) before += total;
  }
  if (!BM_PLANTED(kIndexNoBarrierAfterWords)) simt::SyncBlock();
  const int32_t mask = (1 << params.page_shift) - 1;
  for (int32_t i = thread; i < num_region; i += kIndexThreads) {
    const int32_t position = mine.region_positions[i];
    if (!is_inside(position)) continue;
    const IndexWord word = words[position / 32];
    const uint32_t lower = (1u << (position % 32)) - 1;
    const int64_t rank = word.before + simt::PopCount(word.marks & lower);
    if (rank >= mine.size) continue;
    const int64_t entry = mine.begin + rank;
    const int64_t page = mine.list.region_pages[i >> params.page_shift];
    params.slots[entry] = (page << params.page_shift) + (i & mask);
    params.positions[entry] = position;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ENTRY_INDEX_CUH_
