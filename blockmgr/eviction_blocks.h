// The blocks of one eviction: those that an order takes, and those that its
// region gives back.
#ifndef BLOCKMGR_EVICTION_BLOCKS_H_
#define BLOCKMGR_EVICTION_BLOCKS_H_

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/cached_pool.h"
#include "blockmgr/pending_eviction.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// Takes the destinations of an order that covers these blocks, and fills
// `pending`, but for its length. `region` names the region to be made. Blocks
// that are in the prefix cache are taken last, because taking one costs its
// entry. Returns false, with nothing changed, if there are too few. REQUIRES:
// see BlockManager::ReserveEviction. O(covered blocks).
bool TakeDestinations(const ModelLayout& layout, const HeldBlocks& covered,
                      const EvictionDemand& demand, RegionId region,
                      CachedPool* blocks, PendingEviction* pending);

// Releases the covered blocks and destinations that are not among the region's
// blocks. The region takes over the sequence's holds on its blocks. O(covered
// blocks + destinations).
EvictionReceipt ReplaceBlocks(const ModelLayout& layout,
                              const HeldBlocks& covered,
                              const PendingEviction& pending,
                              const RegionRecord& region, CachedPool* pool);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_BLOCKS_H_
