// Turns keep sets into moves: the survivors of an eviction go to their new
// slots.
//
// Pure functions over plain arrays, for engines. The entries of a head are in
// its page list in position order (PlaceSurvivors). Heads keep different
// positions, so an engine stores the token position of every slot of a region.
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

// The entries of every (layer, head) in ascending position order, CSR.
struct EntryIndex {
  std::vector<int64_t> offsets;    // [num_layers * num_heads + 1]
  std::vector<SlotIndex> slots;    // [offsets.back()]
  std::vector<int32_t> positions;  // [offsets.back()]
};

// Returns the entries with positions in [first, limit). `region_positions` has
// the token position of every region slot, head after head in list order,
// [region->num_entries()]. It is empty without a region. REQUIRES: positions
// ascend within each head; the tail begins at the region's cut and reaches
// `limit`. Cost: O(entries).
EntryIndex IndexEntries(const ModelLayout& layout, const CacheView& now,
                        std::span<const int32_t> region_positions,
                        int32_t limit, int32_t first = 0);

struct CompactionPlan {
  CompactionMoves moves;
  // The token position of every slot of the new region, head after head in list
  // order.
  std::vector<int32_t> positions;  // [next.num_entries()]
};

// Returns the compaction that moves the entries kept by `keep` into `next`, for
// a backend. The result borrows all three arguments. REQUIRES: `entries`
// indexes exactly the positions below next.cut(), and `keep` has ranks into it;
// `next` was laid out from the same cache, for the counts of `keep`.
Compaction CompactionInto(const RaggedRegion& next, const EntryIndex& entries,
                          const KeepSets& keep);

// Returns the moves of this compaction, from PlaceSurvivors. For engines that
// move rows themselves.
CompactionPlan PlanCompaction(const ModelLayout& layout,
                              const EntryIndex& entries, const KeepSets& keep,
                              const RaggedRegion& next);

}  // namespace blockmgr

#endif  // BLOCKMGR_COMPACTION_H_
