// RegionRecord: a region as the manager needs it: blocks and counts.
#ifndef BLOCKMGR_REGION_RECORD_H_
#define BLOCKMGR_REGION_RECORD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/region_layout.h"

namespace blockmgr {

// The page lists follow from blocks and counts (RegionLayout::LayOut on these
// blocks, as if all were fresh) unless pages of an earlier region were kept in
// place; then they are stored. Immutable once made, and shared by sequences and
// the prefix cache: each of them holds every block once.
struct RegionRecord {
  RegionId id = kNoRegion;
  int32_t cut = 0;
  std::vector<BlockId> blocks;
  std::vector<int32_t> kept;  // [num_layers * num_heads], entries
  // Set only when the lists do not follow from `blocks` and `kept`.
  std::unique_ptr<const RegionLayout> layout;

  // Bytes of memory, this object included.
  int64_t metadata_bytes() const {
    const auto own = static_cast<int64_t>(sizeof(RegionRecord));
    const int64_t lists = layout == nullptr
                              ? 0
                              : static_cast<int64_t>(sizeof(RegionLayout)) +
                                    layout->metadata_bytes();
    return own + HeapBytes(blocks) + HeapBytes(kept) + lists;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_REGION_RECORD_H_
