// Assigns the survivors of an eviction to slots of the new region.
//
// PlaceSurvivors is a pure function over plain arrays. Backends use it to carry
// out a compaction. Engines that plan compactions themselves use it through
// blockmgr/compaction.h. Safe to call from any thread.
#ifndef BLOCKMGR_EVICTION_COMPACTION_MOVES_H_
#define BLOCKMGR_EVICTION_COMPACTION_MOVES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// The candidates of an eviction in their current slots, and the new region that
// the survivors move to. Offsets are CSR over (layer, head), from 0:
// [num_layers * num_heads + 1]. The arrays are borrowed for the call.
struct Compaction {
  std::span<const int64_t> offsets;
  std::span<const SlotIndex> slots;    // [offsets.back()]
  std::span<const int32_t> positions;  // [offsets.back()], ascending per head
  const KeepSets* keep = nullptr;      // ranks into them
  // The page lists of the region, as RegionLayout makes them. The first
  // held_pages pages of a list hold no entry of another head. A page behind
  // them is borrowed: it may hold entries of another head, which then has no
  // borrowed pages in its own list.
  std::span<const int32_t> page_offsets;
  std::span<const PageId> pages;        // [page_offsets.back()]
  std::span<const int32_t> held_pages;  // [num_layers * num_heads]
};

// Returns the token position of every slot of the new region, head after head
// in list order, [kept entries]. Unless `moves` is null, it becomes the moves
// that put the entries there.
//
// The survivors of a head stand in position order: the i-th survivor goes to
// the i-th slot of the head's list. What attention computes from a region
// therefore depends on the kept entries alone, and not on the blocks that the
// region was built on. Survivors that already stand where they belong are not
// moved. The heads that borrow no page come first in `moves`: their survivors
// leave the pages that other heads borrow.
// REQUIRES: the lists have room for the survivors, and no page occurs twice.
// Cost: O(kept entries + pages).
std::vector<int32_t> PlaceSurvivors(const ModelLayout& layout,
                                    const Compaction& compaction,
                                    CompactionMoves* moves);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_COMPACTION_MOVES_H_
