// From survivors to the moves of a compaction: every head's strays to its holes
// (blockmgr/compaction.h). One block per head.
#ifndef KERNELS_CUDA_SELECT_MOVES_CUH_
#define KERNELS_CUDA_SELECT_MOVES_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/pool_view.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

static_assert(kSelectThreads == kPrefixThreads);

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

// Things that a thread looks at together, kSelectThreads apart: a wait for
// memory is then one for all of them, and a block takes kMoveTurn in a turn.
inline constexpr int32_t kMoveBatch = 4;
inline constexpr int32_t kMoveTurn =
    kMoveBatch * static_cast<int32_t>(kSelectThreads);

SIMT_DEVICE int32_t InTurn(int32_t k) {
  return k * static_cast<int32_t>(kSelectThreads) +
         static_cast<int32_t>(simt::ThreadIndex());
}

// How many of a turn's things are counted, and how many before each.
class TurnCounts {
 public:
  // counted: of each in the thread's batch. All threads of a block.
  SIMT_DEVICE explicit TurnCounts(const bool (&counted)[kMoveBatch]) {
    static_assert(kMoveBatch * kFieldBits == 64);
    static_assert(kSelectThreads < 1 << kFieldBits);
    uint64_t mine = 0;
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      mine |= static_cast<uint64_t>(counted[k] ? 1 : 0) << (k * kFieldBits);
    }
    before_ = BlockPrefix(mine, 0, &totals_);
  }

  SIMT_DEVICE int32_t Before(int32_t k) const {
    int32_t before = Field(before_, k);
    for (int32_t j = 0; j < k; ++j) before += Field(totals_, j);
    return before;
  }
  SIMT_DEVICE int32_t Total() const {
    int32_t total = 0;
    for (int32_t k = 0; k < kMoveBatch; ++k) total += Field(totals_, k);
    return total;
  }

 private:
  // Of sums over a block, one per thing in a batch.
  static constexpr int32_t kFieldBits = 16;

  SIMT_DEVICE static int32_t Field(uint64_t sums, int32_t k) {
    return static_cast<int32_t>(sums >> (k * kFieldBits) & 0xFFFF);
  }

  uint64_t before_;
  uint64_t totals_;
};

SIMT_DEVICE bool IsSet(const uint32_t* words, int32_t i) {
  return (words[i / 32] >> (i % 32) & 1u) != 0;
}

// Where survivors are among the slots in use of a head's new region.
struct NewRegion {
  const SelectMoves& p;
  const Divider& page_size;
  int32_t pages_begin;
  int32_t pages_end;
  int32_t kept;

  SIMT_DEVICE NewRegion(const SelectMoves& moves, const Divider& divider,
                        uint32_t head)
      : p(moves),
        page_size(divider),
        pages_begin(moves.page_offsets[head]),
        pages_end(moves.page_offsets[head + 1]),
        kept(moves.kept[head]) {}

  // Where in the list of all pages the slot's is; *offset: in the page.
  SIMT_DEVICE int32_t ListedAt(int64_t slot, bool wanted,
                               int32_t* offset) const {
    int64_t page = DivideWide(slot, page_size);
    const bool known = slot >= 0 && page < p.num_pages;
    *offset = static_cast<int32_t>(slot - page * p.page_size);
    if (!known) page = 0;
    const int32_t listed = p.page_places[page];
    if (known) return listed;
    if (wanted) {
      simt::AtomicOr(p.error, static_cast<uint32_t>(kSlotOutOfPool));
    }
    return -1;
  }

  // The number of a slot along the head's page list, or -1 if it is not in use.
  SIMT_DEVICE int32_t PlaceOf(int32_t listed, int32_t offset) const {
    if (listed < pages_begin || listed >= pages_end) return -1;
    int64_t place =
        static_cast<int64_t>(listed - pages_begin) * p.page_size + offset;
    if (BM_PLANTED(kMovesOffByOnePage)) place += p.page_size;
    return place < kept ? static_cast<int32_t>(place) : -1;
  }

  // REQUIRES: region_positions.
  SIMT_DEVICE int32_t* PositionAt(int32_t place) const {
    return p.region_positions +
           static_cast<int64_t>(pages_begin) * p.page_size + place;
  }
};

// Entries of a head, of which those that survive have been looked for in its
// new region.
struct EntryBatch {
  bool live[kMoveBatch];
  bool strays[kMoveBatch];  // live, and not in it
  int64_t slots[kMoveBatch];
  int32_t positions[kMoveBatch];
  int32_t places[kMoveBatch];  // see NewRegion::PlaceOf

  // REQUIRES: base is below num_entries.
  SIMT_DEVICE EntryBatch(const NewRegion& region, uint32_t head, int32_t base,
                         int32_t num_entries) {
    const SelectMoves& p = region.p;
    const int64_t begin = p.offsets[head];
    const uint32_t* const survivors = p.survivors + SurvivorWord(begin, head);
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      const int32_t i = base + InTurn(k);
      live[k] = i < num_entries && IsSet(survivors, i < num_entries ? i : base);
    }
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      // Those that do not survive load another's.
      const int64_t i = begin + base + (live[k] ? InTurn(k) : 0);
      slots[k] = p.slots[i];
      positions[k] = p.region_positions != nullptr ? p.positions[i] : 0;
    }
    int32_t offsets[kMoveBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      places[k] = region.ListedAt(slots[k], live[k], &offsets[k]);
    }
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      places[k] = region.PlaceOf(places[k], offsets[k]);
      strays[k] = live[k] && places[k] < 0;
    }
  }
};

// Marks those of a batch that stay in `filled`. How many are before held_slots.
SIMT_DEVICE uint32_t MarkFilled(const NewRegion& region,
                                const EntryBatch& batch, int64_t held_slots,
                                uint32_t* filled) {
  uint32_t num_held = 0;
  SIMT_UNROLL
  for (int32_t k = 0; k < kMoveBatch; ++k) {
    if (!batch.live[k] || batch.strays[k]) continue;
    const int32_t place = batch.places[k];
    simt::AtomicOr(filled + place / 32, 1u << (place % 32));
    num_held += place < held_slots ? 1 : 0;
    if (region.p.region_positions != nullptr) {
      *region.PositionAt(place) = batch.positions[k];
    }
  }
  return num_held;
}

// Survivors that stay are marked in `filled`; the others are strays, in
// position order. Counts the moves of both phases: holes in pages the head
// holds come first in its list.
SIMT_KERNEL(kSelectThreads, 4)
void MovesFindStrays(SelectMoves p, Divider page_size) {
  simt::AwaitEarlierKernels();
  const uint32_t head = simt::BlockX();
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const NewRegion region(p, page_size, head);
  const int64_t first_stray = p.kept_offsets[head];
  uint32_t* const filled = p.filled + SurvivorWord(first_stray, head);
  const int64_t all_held =
      static_cast<int64_t>(p.held_pages[head]) * p.page_size;
  const int64_t held_slots = all_held < region.kept ? all_held : region.kept;
  int32_t num_strays = 0;
  uint32_t filled_held = 0;  // by this thread
  for (int32_t base = 0; base < num_entries; base += kMoveTurn) {
    const EntryBatch batch(region, head, base, num_entries);
    filled_held += MarkFilled(region, batch, held_slots, filled);
    const TurnCounts counts(batch.strays);
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      const int32_t earlier =
          BM_PLANTED(kMovesForgetEarlierStrays) ? 0 : num_strays;
      const int32_t stray = earlier + counts.Before(k);
      if (!batch.strays[k] || stray >= region.kept) continue;
      p.strays[first_stray + stray] = batch.slots[k];
      if (p.region_positions != nullptr) {
        p.stray_positions[first_stray + stray] = batch.positions[k];
      }
    }
    num_strays += counts.Total();
  }
  uint32_t total;
  BlockPrefix(filled_held, 0, &total);
  if (simt::ThreadIndex() != 0) return;
  const auto phase1 = static_cast<int32_t>(held_slots - total);
  p.counts[head * 2] = phase1;
  p.counts[head * 2 + 1] = num_strays - phase1;
}

// Gives the holes of a head to its strays, in order; all threads of its block.
// first_move: of the head, in the moves of either phase.
SIMT_DEVICE void FillHoles(const NewRegion& region, uint32_t head,
                           const uint32_t* filled,
                           const uint32_t (&first_move)[2]) {
  const SelectMoves& p = region.p;
  const int32_t kept = region.kept;
  const int64_t first_stray = p.kept_offsets[head];
  const int64_t held_slots =
      BM_PLANTED(kMovesIgnoreHeldPages)
          ? kept
          : static_cast<int64_t>(p.held_pages[head]) * p.page_size;
  // Of either phase, by the number of the hole.
  RowMove* const moves1 = p.moves[0] + first_move[0];
  RowMove* const moves2 = p.moves[1] + first_move[1] - p.counts[head * 2];
  const bool has_positions =
      p.region_positions != nullptr && !BM_PLANTED(kMovesLosePosition);
  int32_t num_holes = 0;
  for (int32_t base = 0; base < kept; base += kMoveTurn) {
    bool holes[kMoveBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      const int32_t place = base + InTurn(k);
      holes[k] = place < kept && !IsSet(filled, place < kept ? place : base);
    }
    const TurnCounts counts(holes);
    RowMove moves[kMoveBatch];
    int32_t positions[kMoveBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      // Those that are no holes load another's.
      const int32_t earlier =
          BM_PLANTED(kMovesForgetEarlierHoles) ? 0 : num_holes;
      const int64_t stray =
          first_stray + (holes[k] ? earlier + counts.Before(k) : 0);
      const int32_t place = holes[k] ? base + InTurn(k) : base;
      const int32_t page = Divide(place, region.page_size);
      moves[k].source = p.strays[stray];
      moves[k].destination =
          static_cast<int64_t>(p.pages[region.pages_begin + page]) *
              p.page_size +
          (place - page * p.page_size);
      positions[k] = has_positions ? p.stray_positions[stray] : 0;
    }
    SIMT_UNROLL
    for (int32_t k = 0; k < kMoveBatch; ++k) {
      if (!holes[k]) continue;
      const int32_t place = base + InTurn(k);
      const int32_t hole = num_holes + counts.Before(k);
      (place < held_slots ? moves1 : moves2)[hole] = moves[k];
      if (has_positions) *region.PositionAt(place) = positions[k];
    }
    num_holes += counts.Total();
  }
}

// Leaves the work space as it was before all three kernels.
SIMT_DEVICE void ClearMarks(const NewRegion& region, uint32_t* filled) {
  const SelectMoves& p = region.p;
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  constexpr auto kThreads = static_cast<int32_t>(kSelectThreads);
  for (int32_t word = thread; word < (region.kept + 31) / 32;
       word += kThreads) {
    filled[word] = 0;
  }
  for (int32_t i = region.pages_begin + thread; i < region.pages_end;
       i += kThreads) {
    const int32_t page = p.pages[i];
    if (IsPageOfPool(p, page)) p.page_places[page] = -1;
  }
}

SIMT_KERNEL(kSelectThreads, 4)
void MovesFillHoles(SelectMoves p, Divider page_size) {
  simt::AwaitEarlierKernels();
  const uint32_t head = simt::BlockX();
  const NewRegion region(p, page_size, head);
  uint32_t* const filled = p.filled + SurvivorWord(p.kept_offsets[head], head);
  // Moves of the heads before this one. Each phase's sum fits 32 bits, for a
  // pool has fewer than 2^31 pages and a region few of them.
  uint32_t sums[2] = {0, 0};
  for (uint32_t h = simt::ThreadIndex(); h < head; h += kSelectThreads) {
    sums[0] += static_cast<uint32_t>(p.counts[h * 2]);
    sums[1] += static_cast<uint32_t>(p.counts[h * 2 + 1]);
  }
  uint32_t first_move[2];
  BlockPrefix(sums[0], 0, &first_move[0]);
  BlockPrefix(sums[1], 0, &first_move[1]);
  FillHoles(region, head, filled, first_move);
  if (head + 1 == static_cast<uint32_t>(p.num_heads) &&
      simt::ThreadIndex() == 0) {
    for (int32_t phase = 0; phase < 2; ++phase) {
      p.num_moves[phase] =
          static_cast<int64_t>(first_move[phase]) + p.counts[head * 2 + phase];
    }
  }
  // Every thread has read what it needed before the last barrier.
  ClearMarks(region, filled);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_MOVES_CUH_
