// The kernels of entry_index.h.
#ifndef KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_
#define KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The list of a CTA: its place in the tables, and the place of its entries.
struct IndexedList {
  AttentionList list;
  int32_t layer = 0;
  int32_t cut = 0;  // of its sequence
  int32_t sequence = 0;
  int64_t index = 0;  // among all lists
  int64_t begin = 0;  // of its entries
  int64_t size = 0;
  const int32_t* region_positions = nullptr;  // by rank
};

// Loads list `in_layer` of a layer, counted from the first layer.
SIMT_DEVICE IndexedList LoadIndexedList(const EntryIndexParams& params,
                                        int32_t layer, int32_t in_layer) {
  AttentionLists lists = params.lists;
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
  result.sequence = sequence;
  result.index =
      int64_t{layer} * lists.num_sequences * lists.num_heads + in_layer;
  result.begin = params.offsets[result.index];
  result.size = params.offsets[result.index + 1] - result.begin;
  return result;
}

// The list of a CTA whose grid is {lists of a layer; ..; layers}.
SIMT_DEVICE IndexedList LoadIndexedList(const EntryIndexParams& params) {
  return LoadIndexedList(params, static_cast<int32_t>(simt::BlockZ()),
                         static_cast<int32_t>(simt::BlockX()));
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
  // The CTA counts the words [first, end).
  int32_t first;
  int32_t end;

  SIMT_DEVICE MarkedWords(const EntryIndexParams& params,
                          const IndexedList& mine) {
    const AttentionLists& lists = params.lists;
    const int64_t* const offsets = params.word_offsets + mine.sequence;
    const int64_t num_words = offsets[1] - offsets[0];
    const int64_t layer_words = params.word_offsets[lists.num_sequences];
    const int64_t layer = mine.layer - lists.layer;
    const int64_t begin = (layer * layer_words + offsets[0]) * lists.num_heads +
                          mine.list.head * num_words;
    marks = params.marks + begin;
    words = params.words + begin;
    count = (mine.cut + 31) / 32;
    if (count > num_words) count = static_cast<int32_t>(num_words);
    first = 0;
    end = count;
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

// Marks the positions of some places.
SIMT_DEVICE void MarkPlaces(const MarkedWords& marked,
                            const RegionBatch& batch) {
  SIMT_UNROLL
  for (int32_t k = 0; k < RegionBatch::kSize; ++k) {
    const int32_t position = batch.positions[k];
    if (!batch.inside[k]) continue;
    simt::AtomicOr(marked.marks + position / 32, 1u << (position % 32));
  }
}

// Turns the marks of the CTA into words. load(i) returns marks i. `before` is
// the number of marks in all lower words. All threads of a block call it.
template <typename Load>
SIMT_DEVICE void CountMarks(const MarkedWords& marked, uint32_t before,
                            const Load& load) {
  static_assert(kIndexThreads == kPrefixThreads);
  using Turn = WordTurn<kIndexThreads>;
  for (int32_t base = marked.first; base < marked.end; base += Turn::kStep) {
    const Turn turn(base, marked.end, load);
    uint32_t lower = before + turn.before;
    SIMT_UNROLL
    for (int32_t k = 0; k < Turn::kSize; ++k) {
      const int32_t i = turn.first + k;
      if (i < marked.end) marked.words[i] = {turn.words[k], lower};
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
    MarkPlaces(marked, RegionBatch(mine, marked, first, params.error));
  }
  simt::SyncBlock();
  if (marked.count == 0) return;  // not one position was inside
  // An exchange, not a load: it reads where the atomics wrote, and sets the
  // word back to zero.
  CountMarks(marked, 0, [&](int32_t i) {
    return simt::AtomicExchange(marked.marks + i, 0u);
  });
  simt::SyncBlock();
  for (int32_t first = thread; first < num_region; first += kStep) {
    PlaceEntries(params, mine, marked,
                 RegionBatch(mine, marked, first, params.error));
  }
}

// The chunk of a CTA: its places in the list's region, and its share of the
// list's words. The grids of the kernels below are chunks.count.
struct RegionChunk {
  IndexedList mine;
  MarkedWords marked;
  int32_t first;
  int32_t end;

  SIMT_DEVICE explicit RegionChunk(const EntryIndexParams& params)
      : RegionChunk(params, Find(params)) {}

  // Calls use(batch) for the places of this thread.
  template <typename Use>
  SIMT_DEVICE void ForEachBatch(uint32_t* error, const Use& use) const {
    static_assert(kIndexChunkEntries == RegionBatch::kSize * kIndexThreads);
    for (int32_t i = first + static_cast<int32_t>(simt::ThreadIndex()); i < end;
         i += kIndexChunkEntries) {
      use(RegionBatch(mine, marked, i, error));
    }
  }

 private:
  SIMT_DEVICE static ListSplit Find(const EntryIndexParams& params) {
    return FindSplit(
        params.chunks.offsets,
        params.num_layers * params.lists.num_sequences * params.lists.num_heads,
        static_cast<int32_t>(simt::BlockX()));
  }
  SIMT_DEVICE static IndexedList LoadOf(const EntryIndexParams& params,
                                        int32_t list) {
    const int32_t num_lists =
        params.lists.num_sequences * params.lists.num_heads;
    return LoadIndexedList(params, list / num_lists, list % num_lists);
  }
  SIMT_DEVICE RegionChunk(const EntryIndexParams& params,
                          const ListSplit& chunk)
      : mine(LoadOf(params, chunk.list)),
        marked(params, mine),
        first(chunk.split * kIndexChunkEntries),
        end(first + kIndexChunkEntries) {
    const int32_t* const chunks = params.chunks.offsets + chunk.list;
    const int32_t num_chunks = chunks[1] - chunks[0];
    // A region that has no room in its list is read to its end.
    if (end > mine.list.region_length || chunk.split + 1 == num_chunks) {
      end = mine.list.region_length;
    }
    const int32_t share = (marked.count + num_chunks - 1) / num_chunks;
    marked.first = chunk.split * share;
    if (marked.first > marked.count) marked.first = marked.count;
    if (marked.first + share < marked.end) marked.end = marked.first + share;
  }
};

// Marks the positions of regions.
SIMT_KERNEL(kIndexThreads, 4)
void MarkRegions(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  const RegionChunk chunk(params);
  chunk.ForEachBatch(params.error, [&](const RegionBatch& batch) {
    MarkPlaces(chunk.marked, batch);
  });
}

// Turns marks into words. Shared memory: kPrefixSharedBytes.
SIMT_KERNEL(kIndexThreads, 4)
void CountRegions(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  const RegionChunk chunk(params);
  const MarkedWords& marked = chunk.marked;
  if (marked.first == marked.end) return;
  const auto num_before = static_cast<uint32_t>(marked.first);
  const uint32_t before =
      num_before > 0 ? CountBits<kIndexThreads>(marked.marks, num_before) : 0;
  CountMarks(marked, before, [&](int32_t i) { return marked.marks[i]; });
}

// Writes the entries of regions, and sets marks back to zero.
SIMT_KERNEL(kIndexThreads, 4)
void PlaceRegions(EntryIndexParams params) {
  simt::AwaitEarlierKernels();
  const RegionChunk chunk(params);
  const MarkedWords& marked = chunk.marked;
  for (int32_t i = marked.first + static_cast<int32_t>(simt::ThreadIndex());
       i < marked.end; i += kIndexThreads) {
    marked.marks[i] = 0;
  }
  if (marked.count == 0) return;  // not one position was inside
  chunk.ForEachBatch(params.error, [&](const RegionBatch& batch) {
    PlaceEntries(params, chunk.mine, marked, batch);
  });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_ENTRY_INDEX_CUH_
