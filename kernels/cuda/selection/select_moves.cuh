// Turns survivors into the moves of a compaction; see SelectMoves. One block
// per head, or per chunk of a head.
#ifndef KERNELS_CUDA_SELECTION_SELECT_MOVES_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_MOVES_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/paged_pool.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

static_assert(kSelectThreads == kPrefixThreads);

// A word of survivors, and the number of survivors of the head before the word.
struct PlacedWord {
  uint32_t survivors;
  uint32_t before;
};

// The shared memory: that of BlockPrefix, then the words of a turn, one per
// thread.
inline constexpr uint32_t kMovesSharedBytes =
    kPrefixSharedBytes + kSelectThreads * sizeof(PlacedWord);

// The words that a warp takes together, so that it waits for memory once for
// all of them.
inline constexpr uint32_t kMoveBatch = 4;

// The arrays of a head, each from the head's first element on.
struct MovedHead {
  const int64_t* slots;
  const int32_t* positions;  // null if no positions are wanted
  const int32_t* pages;
  RowMove* moves;
  int32_t* region_positions;
  int32_t kept;

  SIMT_DEVICE MovedHead(const SelectMoves& p, uint32_t head)
      : slots(p.slots + p.offsets[head]),
        positions(nullptr),
        pages(p.pages + p.page_offsets[head]),
        moves(p.moves + p.move_offsets[head]),
        region_positions(nullptr),
        kept(p.kept[head]) {
    if (p.region_positions == nullptr) return;
    positions = p.positions + p.offsets[head];
    region_positions = p.region_positions +
                       static_cast<int64_t>(p.page_offsets[head]) * p.page_size;
  }
};

// Returns whether the moves of a head and their pages are inside the arrays.
SIMT_DEVICE bool HasRoomForMoves(const SelectMoves& p, uint32_t head) {
  const int64_t kept = p.kept[head];
  const int64_t first_page = p.page_offsets[head];
  const int64_t end_page = p.page_offsets[head + 1];
  const int64_t first_move = p.move_offsets[head];
  return kept >= 0 && first_page >= 0 && end_page <= p.num_pages &&
         kept <= (end_page - first_page) * p.page_size && first_move >= 0 &&
         kept <= p.num_moves - first_move;
}

// Writes the moves of up to kMoveBatch words, one lane per entry of a word.
// `entry` is the first entry of the first word, counted in the head. REQUIRES:
// the head keeps an entry.
SIMT_DEVICE void MoveSurvivors(const MovedHead& head, const Divider& page_size,
                               const PlacedWord (&words)[kMoveBatch],
                               int32_t entry) {
  const uint32_t lane = simt::Lane();
  int32_t places[kMoveBatch];
  int32_t pages[kMoveBatch];
  int64_t slots[kMoveBatch];
  int32_t positions[kMoveBatch];
  bool live[kMoveBatch];
  SIMT_UNROLL
  for (uint32_t k = 0; k < kMoveBatch; ++k) {
    const uint32_t lower = words[k].survivors & ((1u << lane) - 1);
    places[k] = static_cast<int32_t>(words[k].before) + simt::PopCount(lower);
    live[k] = (words[k].survivors >> lane & 1u) != 0 && places[k] < head.kept;
  }
  // An entry that does not survive loads the values of entry 0 and page 0.
  SIMT_UNROLL
  for (uint32_t k = 0; k < kMoveBatch; ++k) {
    const int32_t i = live[k] ? entry + static_cast<int32_t>(32 * k + lane) : 0;
    slots[k] = head.slots[i];
    positions[k] = head.positions != nullptr ? head.positions[i] : 0;
    pages[k] = head.pages[live[k] ? Divide(places[k], page_size) : 0];
  }
  SIMT_UNROLL
  for (uint32_t k = 0; k < kMoveBatch; ++k) {
    if (!live[k]) continue;
    const auto size = static_cast<int32_t>(page_size.divisor);
    const int32_t offset = places[k] - Divide(places[k], page_size) * size;
    const int64_t page = pages[k];
    head.moves[places[k]] = {slots[k], page * size + offset};
    if (head.positions != nullptr) {
      head.region_positions[places[k]] = positions[k];
    }
  }
}

// Grid: num_heads, or chunks.count. Shared memory: kMovesSharedBytes.
SIMT_KERNEL(kSelectThreads, 4)
void PlanMoves(SelectMoves p, Divider page_size) {
  simt::AwaitEarlierKernels();
  const bool is_whole = p.chunks.offsets == nullptr;
  ListSplit part;
  part.list = static_cast<int32_t>(simt::BlockX());
  if (!is_whole) part = FindSplit(p.chunks.offsets, p.num_heads, part.list);
  const auto head = static_cast<uint32_t>(part.list);
  if (!HasRoomForMoves(p, head)) {
    if (simt::ThreadIndex() == 0) {
      simt::AtomicOr(p.error, static_cast<uint32_t>(kOffsetsOutOfLists));
    }
    return;
  }
  const MovedHead moved(p, head);
  if (moved.kept == 0) return;
  const int64_t begin = p.offsets[head];
  const uint32_t* const survivors = p.survivors + SurvivorWord(begin, head);
  auto end_word =
      static_cast<uint32_t>((p.offsets[head + 1] - begin + 31) / 32);
  const auto part_words = static_cast<uint32_t>(p.chunk_entries / 32);
  const uint32_t first_word = static_cast<uint32_t>(part.split) * part_words;
  if (!is_whole && first_word + part_words < end_word) {
    end_word = first_word + part_words;
  }
  const auto placed =
      simt::Shared<PlacedWord>(kPrefixSharedBytes, kSelectThreads);
  constexpr uint32_t kWarps = kSelectThreads / simt::kWarpThreads;
  uint32_t before =
      first_word > 0 ? CountBits<kSelectThreads>(survivors, first_word) : 0;
  for (uint32_t base = first_word; base < end_word; base += kSelectThreads) {
    const uint32_t mine = base + simt::ThreadIndex();
    const uint32_t word = mine < end_word ? survivors[mine] : 0;
    uint32_t total;
    // The barriers also separate this turn's words from readers of the last
    // turn.
    const uint32_t lower =
        BlockPrefix(static_cast<uint32_t>(simt::PopCount(word)), 0, &total);
    placed.Store(simt::ThreadIndex(), {word, before + lower});
    simt::SyncBlock();
    const uint32_t rest = end_word - base;
    const uint32_t count = rest < kSelectThreads ? rest : kSelectThreads;
    for (uint32_t first = simt::Warp() * kMoveBatch; first < count;
         first += kWarps * kMoveBatch) {
      PlacedWord words[kMoveBatch];
      SIMT_UNROLL
      for (uint32_t k = 0; k < kMoveBatch; ++k) {
        words[k] = placed.Load(first + k);
      }
      MoveSurvivors(moved, page_size, words,
                    static_cast<int32_t>(32 * (base + first)));
    }
    before += total;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_MOVES_CUH_
