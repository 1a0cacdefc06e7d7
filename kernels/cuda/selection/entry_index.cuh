// The kernels of entry_index.h.
#ifndef KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_
#define KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The list of a CTA: its place in the tables, and the place of its entries.
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
                         list.head;
    const int64_t entry = mine.begin + list.region_length + i;
    params.slots[entry] = (page << params.page_shift) + (i & mask);
    params.positions[entry] = mine.cut + static_cast<int32_t>(i);
  }
}

// The words in which the positions of a list are marked.
struct MarkedWords {
  uint32_t* marks;
  IndexWord* words;
  int32_t count;

  SIMT_DEVICE MarkedWords(const EntryIndexParams& params,
                          const IndexedList& mine) {
    const AttentionLists& lists = params.lists;
    const int64_t* const offsets = params.word_offsets;
    const auto sequence =
        static_cast<int32_t>(simt::BlockX()) / lists.num_heads;
    const int64_t num_words = offsets[sequence + 1] - offsets[sequence];
    const int64_t first =
        (simt::BlockZ() * offsets[lists.num_sequences] + offsets[sequence]) *
            lists.num_heads +
        mine.list.head * num_words;
    marks = params.marks + first;
    words = params.words + first;
    count = (mine.cut + 31) / 32;
    if (count > num_words) count = static_cast<int32_t>(num_words);
  }
};

// The places in a region that a thread reads together, so that it waits for
// memory once for all of them.
struct RegionBatch {
  static constexpr int32_t kSize = 8;

  int32_t places[kSize];
  int32_t positions[kSize];
  bool inside[kSize];  // below the cut

  // The places from `first` on, kIndexThreads apart. The last places may not
  // exist. They load the first place.
  SIMT_DEVICE RegionBatch(const IndexedList& mine, const MarkedWords& marked,
                          int32_t first, uint32_t* error) {
    const int32_t num_region = mine.list.region_length;
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      const int32_t i = first + k * kIndexThreads;
      places[k] = i < num_region ? i : first;
      positions[k] = mine.region_positions[places[k]];
    }
    bool all_inside = true;
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      inside[k] = positions[k] >= 0 && positions[k] < mine.cut &&
                  positions[k] / 32 < marked.count;
      all_inside = all_inside && inside[k];
      inside[k] = inside[k] && first + k * kIndexThreads < num_region;
    }
    if (!all_inside) {
      simt::AtomicOr(error, static_cast<uint32_t>(kPositionOutOfCut));
    }
  }
};

// Turns marks into words. All threads of a block call it.
SIMT_DEVICE void CountMarks(const MarkedWords& marked) {
  static_assert(kIndexThreads == kPrefixThreads);
  using Turn = WordTurn<kIndexThreads>;
  uint32_t before = 0;
  for (int32_t base = 0; base < marked.count; base += Turn::kStep) {
    // An exchange, not a load: it reads where the atomics wrote, and sets the
    // word back to zero.
    const Turn turn(base, marked.count, [&](int32_t i) {
      return simt::AtomicExchange(marked.marks + i, 0u);
    });
    uint32_t lower = before + turn.before;
    SIMT_UNROLL
    for (int32_t k = 0; k < Turn::kSize; ++k) {
      const int32_t i = turn.first + k;
      if (i < marked.count) marked.words[i] = {turn.words[k], lower};
      lower += static_cast<uint32_t>(simt::PopCount(turn.words[k]));
    }
    before += turn.total;
  }
}

// Writes the entries of some places. All words must be written before.
SIMT_DEVICE void PlaceEntries(const EntryIndexParams& params,
                              const IndexedList& mine,
                              const MarkedWords& marked,
                              const RegionBatch& batch) {
  constexpr int32_t kSize = RegionBatch::kSize;
  IndexWord words[kSize];
  int64_t pages[kSize];
  SIMT_UNROLL
  for (int32_t k = 0; k < kSize; ++k) {
    words[k] = marked.words[batch.inside[k] ? batch.positions[k] / 32 : 0];
    pages[k] = mine.list.region_pages[batch.places[k] >> params.page_shift];
  }
  const int32_t mask = (1 << params.page_shift) - 1;
  SIMT_UNROLL
  for (int32_t k = 0; k < kSize; ++k) {
    const uint32_t lower = (1u << (batch.positions[k] & 31)) - 1;
    const int64_t rank =
        words[k].before + simt::PopCount(words[k].marks & lower);
    if (!batch.inside[k] || rank >= mine.size) continue;
    const int64_t entry = mine.begin + rank;
    params.slots[entry] =
        (pages[k] << params.page_shift) + (batch.places[k] & mask);
    params.positions[entry] = batch.positions[k];
  }
}

// Grid: {lists of a layer; 1; layers}. Shared memory: kPrefixSharedBytes.
SIMT_KERNEL(kIndexThreads, 4)
void IndexRegions(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  const IndexedList mine = LoadIndexedList(params);
  if (mine.list.region_length == 0) return;
  const MarkedWords marked(params, mine);
  constexpr int32_t kStep = RegionBatch::kSize * kIndexThreads;
  const int32_t num_region = mine.list.region_length;
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  for (int32_t first = thread; first < num_region; first += kStep) {
    const RegionBatch batch(mine, marked, first, params.error);
    SIMT_UNROLL
    for (int32_t k = 0; k < RegionBatch::kSize; ++k) {
      const int32_t position = batch.positions[k];
      if (!batch.inside[k]) continue;
      simt::AtomicOr(marked.marks + position / 32, 1u << (position % 32));
    }
  }
  simt::SyncBlock();
  if (marked.count == 0) return;  // not one position was inside
  CountMarks(marked);
  simt::SyncBlock();
  for (int32_t first = thread; first < num_region; first += kStep) {
    PlaceEntries(params, mine, marked,
                 RegionBatch(mine, marked, first, params.error));
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_
