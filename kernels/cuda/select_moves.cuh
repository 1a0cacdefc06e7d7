// From survivors to the moves of a compaction: every head's strays to its holes
// (blockmgr/compaction.h). One block per head.
#ifndef KERNELS_CUDA_SELECT_MOVES_CUH_
#define KERNELS_CUDA_SELECT_MOVES_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

SIMT_DEVICE bool IsPageOfPool(const SelectMoves& p, int64_t page) {
  return page >= 0 && page < p.num_pages;
}

// Says of each page of the new region where in the list it is.
SIMT_KERNEL(kSelectThreads, 4)
void MovesMarkPages(SelectMoves p) {
  simt::AwaitEarlierKernels();
  const uint32_t head = simt::BlockX();
  for (int32_t i =
           p.page_offsets[head] + static_cast<int32_t>(simt::ThreadIndex());
       i < p.page_offsets[head + 1];
       i += static_cast<int32_t>(simt::NumThreads())) {
    const int32_t page = p.pages[i];
    if (IsPageOfPool(p, page)) {
      p.page_places[page] = i;
    } else {
      simt::AtomicOr(p.error, static_cast<uint32_t>(kPageOutOfPool));
    }
  }
}

// The slot's number along the head's new page list, or -1 if the slot is not
// among those in use.
SIMT_DEVICE int64_t PlaceOf(const SelectMoves& p, uint32_t head, int64_t slot) {
  const int64_t page = slot / p.page_size;
  if (slot < 0 || page >= p.num_pages) {
    simt::AtomicOr(p.error, static_cast<uint32_t>(kSlotOutOfPool));
    return -1;
  }
  const int32_t listed = p.page_places[page];
  const int32_t begin = p.page_offsets[head];
  if (listed < begin || listed >= p.page_offsets[head + 1]) return -1;
  int64_t place = static_cast<int64_t>(listed - begin) * p.page_size +
                  (slot - page * p.page_size);
  if (BM_PLANTED(kMovesOffByOnePage)) place += p.page_size;
  return place < p.kept[head] ? place : -1;
}

SIMT_DEVICE int32_t* RegionPosition(const SelectMoves& p, uint32_t head,
                                    int64_t place) {
  return p.region_positions +
         static_cast<int64_t>(p.page_offsets[head]) * p.page_size + place;
}

// Survivors that stay are marked in `filled`; the others are strays, in
// position order. Counts the moves of both phases: holes in pages the head
// holds come first in its list.
SIMT_KERNEL(kSelectThreads, 4)
void MovesFindStrays(SelectMoves p) {
  simt::AwaitEarlierKernels();
  const uint32_t head = simt::BlockX();
  const int64_t begin = p.offsets[head];
  const int64_t num_entries = p.offsets[head + 1] - begin;
  const int64_t first_word = SurvivorWord(begin, head);
  const int64_t filled_word = SurvivorWord(p.kept_offsets[head], head);
  const int64_t all_held =
      static_cast<int64_t>(p.held_pages[head]) * p.page_size;
  const int64_t held_slots = all_held < p.kept[head] ? all_held : p.kept[head];
  const bool has_positions = p.region_positions != nullptr;
  int64_t num_strays = 0;
  uint32_t filled_held = 0;  // by this thread
  for (int64_t base = 0; base < num_entries; base += kSelectThreads) {
    const int64_t i = base + simt::ThreadIndex();
    bool is_stray = false;
    int64_t slot = 0;
    int32_t position = 0;
    if (i < num_entries &&
        (p.survivors[first_word + i / 32] >> (i % 32) & 1u) != 0) {
      slot = p.slots[begin + i];
      if (has_positions) position = p.positions[begin + i];
      const int64_t place = PlaceOf(p, head, slot);
      is_stray = place < 0;
      if (!is_stray) {
        simt::AtomicOr(p.filled + filled_word + place / 32, 1u << (place % 32));
        filled_held += place < held_slots ? 1 : 0;
        if (has_positions) *RegionPosition(p, head, place) = position;
      }
    }
    uint32_t total;
    const uint32_t before = BlockPrefix(is_stray ? 1u : 0u, 0, &total);
    const int64_t stray = num_strays + before;
    if (is_stray && stray < p.kept[head]) {
      p.strays[p.kept_offsets[head] + stray] = slot;
      if (has_positions) {
        p.stray_positions[p.kept_offsets[head] + stray] = position;
      }
    }
    num_strays += total;
  }
  uint32_t total;
  BlockPrefix(filled_held, 0, &total);
  if (simt::ThreadIndex() != 0) return;
  const auto phase1 = static_cast<int32_t>(held_slots - total);
  p.counts[head * 2] = phase1;
  p.counts[head * 2 + 1] = static_cast<int32_t>(num_strays) - phase1;
}

// Gives the i-th hole to the i-th stray, and leaves the work space as it was.
SIMT_KERNEL(kSelectThreads, 4)
void MovesFillHoles(SelectMoves p) {
  simt::AwaitEarlierKernels();
  const uint32_t head = simt::BlockX();
  const int32_t kept = p.kept[head];
  const int64_t filled_word = SurvivorWord(p.kept_offsets[head], head);
  const int64_t held_slots =
      BM_PLANTED(kMovesIgnoreHeldPages)
          ? kept
          : static_cast<int64_t>(p.held_pages[head]) * p.page_size;
  // Moves of the heads before this one. Each phase's sum fits 32 bits, for a
  // pool has fewer than 2^31 pages and a region few of them.
  uint32_t sums[2] = {0, 0};
  for (uint32_t h = simt::ThreadIndex(); h < head; h += simt::NumThreads()) {
    sums[0] += static_cast<uint32_t>(p.counts[h * 2]);
    sums[1] += static_cast<uint32_t>(p.counts[h * 2 + 1]);
  }
  uint32_t first[2];
  BlockPrefix(sums[0], 0, &first[0]);
  BlockPrefix(sums[1], 0, &first[1]);
  int64_t num_holes = 0;
  const int64_t num_phase1 = p.counts[head * 2];
  for (int64_t base = 0; base < kept; base += kSelectThreads) {
    const int64_t place = base + simt::ThreadIndex();
    const bool is_hole =
        place < kept &&
        (p.filled[filled_word + place / 32] >> (place % 32) & 1u) == 0;
    uint32_t total;
    const uint32_t before = BlockPrefix(is_hole ? 1u : 0u, 0, &total);
    if (is_hole) {
      const int64_t hole = num_holes + before;
      const int64_t page = p.pages[p.page_offsets[head] + place / p.page_size];
      const int64_t stray = p.kept_offsets[head] + hole;
      const RowMove move = {p.strays[stray],
                            page * p.page_size + place % p.page_size};
      if (p.region_positions != nullptr && !BM_PLANTED(kMovesLosePosition)) {
        *RegionPosition(p, head, place) = p.stray_positions[stray];
      }
      if (place < held_slots) {
        p.moves[0][first[0] + hole] = move;
      } else {
        p.moves[1][first[1] + hole - num_phase1] = move;
      }
    }
    num_holes += total;
  }
  if (head + 1 == static_cast<uint32_t>(p.num_heads) &&
      simt::ThreadIndex() == 0) {
    p.num_moves[0] = static_cast<int64_t>(first[0]) + p.counts[head * 2];
    p.num_moves[1] = static_cast<int64_t>(first[1]) + p.counts[head * 2 + 1];
  }
  // Every thread has read what it needed before the last barrier.
  for (int64_t word = simt::ThreadIndex(); word * 32 < kept;
       word += simt::NumThreads()) {
    p.filled[filled_word + word] = 0;
  }
  for (int32_t i =
           p.page_offsets[head] + static_cast<int32_t>(simt::ThreadIndex());
       i < p.page_offsets[head + 1];
       i += static_cast<int32_t>(simt::NumThreads())) {
    const int32_t page = p.pages[i];
    if (IsPageOfPool(p, page)) p.page_places[page] = -1;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_MOVES_CUH_
