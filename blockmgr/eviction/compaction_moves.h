// Where the survivors of an eviction go: from keep sets to slots of a region.
//
// A pure function over plain arrays, below regions and backends: both the
// backends that carry a compaction out and the engines that plan one themselves
// (blockmgr/compaction.h) have it from here. Safe from any thread.
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

// Candidates of an eviction as they are now, and the new region that survivors
// are to be moved to. CSR over (layer, head), offsets from 0, [num_layers *
// num_heads + 1]. Borrowed for the call.
struct Compaction {
  std::span<const int64_t> offsets;
  std::span<const SlotIndex> slots;    // [offsets.back()]
  std::span<const int32_t> positions;  // [offsets.back()], ascending per head
  const KeepSets* keep = nullptr;      // ranks into them
  // The region's page lists, and how many pages of each list the head held
  // before; they come first.
  std::span<const int32_t> page_offsets;
  std::span<const PageId> pages;        // [page_offsets.back()]
  std::span<const int32_t> held_pages;  // [num_layers * num_heads]
};

// The token position of every slot of the new region, head after head in list
// order, [kept entries]; and, unless null, `moves` becomes those that make it
// so. Of a head's survivors, those in slots that its new list begins with, as
// many as it keeps, stay; the others, strays, go to the holes between them: in
// position order to holes in list order, i-th to i-th. Holes in held pages are
// phase 1, the others phase 2. REQUIRES: the lists have room for what is kept,
// and no page twice. Cost: O(kept entries + pages).
std::vector<int32_t> PlaceSurvivors(const ModelLayout& layout,
                                    const Compaction& compaction,
                                    CompactionMoves* moves);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_COMPACTION_MOVES_H_
