// RegionRecord: the blocks and counts of a region, for the manager.
#ifndef BLOCKMGR_REGION_RECORD_H_
#define BLOCKMGR_REGION_RECORD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/region_layout.h"

namespace blockmgr {

// The page lists of a region follow from its blocks and counts: they are what
// RegionLayout::LayOut makes if all blocks are fresh. If pages of an earlier
// region were kept in place, the lists do not follow, and `layout` stores them.
// A record is immutable. Sequences and the prefix cache share it, and each of
// these holders holds every block once.
struct RegionRecord {
  RegionId id = kNoRegion;
  int32_t cut = 0;
  std::vector<BlockId> blocks;
  std::vector<int32_t> kept;  // [num_layers * num_heads], entries
  // Null if the page lists follow from `blocks` and `kept`.
  std::unique_ptr<const RegionLayout> layout;

  // Returns the bytes of memory, with this object.
  int64_t metadata_bytes() const {
    const auto own = static_cast<int64_t>(sizeof(RegionRecord));
    const int64_t lists = layout == nullptr
                              ? 0
                              : static_cast<int64_t>(sizeof(RegionLayout)) +
                                    layout->metadata_bytes();
    return own + HeapBytes(blocks) + HeapBytes(kept) + lists;
  }
  // Returns the bytes of `record`, and adds it to `counted`. Returns 0 if
  // `record` is null or in `counted` already.
  static int64_t CountBytes(const RegionRecord* record,
                            absl::flat_hash_set<const RegionRecord*>* counted) {
    return record != nullptr && counted->insert(record).second
               ? record->metadata_bytes()
               : 0;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_REGION_RECORD_H_
