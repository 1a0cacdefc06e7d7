// Keep sets -> moves: how the survivors of an eviction get to their new slots.
//
// Pure functions over plain arrays, used by engines. The entries of a head
// stand in its page list in position order (PlaceSurvivors). Heads keep
// different positions, so every slot of a region carries its token position.
#ifndef BLOCKMGR_COMPACTION_H_
#define BLOCKMGR_COMPACTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"

namespace blockmgr {

// Live entries of every (layer, head) in ascending position order, CSR.
struct EntryIndex {
  std::vector<int64_t> offsets;    // [num_layers * num_heads + 1]
  std::vector<SlotIndex> slots;    // [offsets.back()]
  std::vector<int32_t> positions;  // [offsets.back()]
};

// Indexes the entries with positions in [first, limit). `region_positions`
// holds the token position of every region slot, head after head in list order
// ([region->num_entries()]; empty without a region). REQUIRES: they ascend
// within each head. The tail starts at the region's cut and must reach `limit`.
// Cost: O(entries).
EntryIndex IndexEntries(const ModelLayout& layout, const CacheView& now,
                        std::span<const int32_t> region_positions,
                        int32_t limit, int32_t first = 0);

struct CompactionPlan {
  CompactionMoves moves;
  // Token position of every slot of the new region, head after head in list
  // order.
  std::vector<int32_t> positions;  // [next.num_entries()]
};

// The move of the entries kept by `keep` (ranks into `entries`, which must
// index exactly the positions below next.cut()) into `next`, as backends take
// it. Borrows all three. REQUIRES: `next` was laid out from the cache that
// `entries` indexes, for the counts of `keep`.
Compaction CompactionInto(const RaggedRegion& next, const EntryIndex& entries,
                          const KeepSets& keep);

// The same, planned with PlaceSurvivors: for engines that move rows themselves.
CompactionPlan PlanCompaction(const ModelLayout& layout,
                              const EntryIndex& entries, const KeepSets& keep,
                              const RaggedRegion& next);

}  // namespace blockmgr

#endif  // BLOCKMGR_COMPACTION_H_
