// PendingEviction: an eviction that was ordered and is not acknowledged yet,
// and pure functions that check the answer and make the region.
#ifndef BLOCKMGR_PENDING_EVICTION_H_
#define BLOCKMGR_PENDING_EVICTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_layout.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// A region and the tail behind it in one layer group: of a sequence, of a part
// of a sequence, or of a sequence that is about to start.
struct HeldBlocks {
  const RegionRecord* region = nullptr;
  int32_t cut = 0;
  std::span<const BlockId> tail;

  int32_t num_blocks() const {
    return static_cast<int32_t>(tail.size()) +
           (region == nullptr ? 0
                              : static_cast<int32_t>(region->blocks.size()));
  }
};

// Returns whether both hold the same region, or the same block at a page. A
// block always has the same page. O(pages that both have).
inline bool ShareBlocks(const HeldBlocks& a, const HeldBlocks& b,
                        int32_t page_size) {
  if (a.region != nullptr && a.region == b.region) return true;
  const int32_t begin = std::max(a.cut, b.cut);
  const auto from_begin = [begin, page_size](const HeldBlocks& held) {
    const auto skipped = static_cast<size_t>((begin - held.cut) / page_size);
    return held.tail.subspan(std::min(skipped, held.tail.size()));
  };
  const std::span<const BlockId> pages_a = from_begin(a);
  const std::span<const BlockId> pages_b = from_begin(b);
  const size_t num_pages = std::min(pages_a.size(), pages_b.size());
  // The loop has no branches, so it counts all shared blocks.
  int32_t num_shared = 0;
  for (size_t i = 0; i < num_pages; ++i) {
    num_shared += pages_a[i] == pages_b[i] ? 1 : 0;
  }
  return num_shared > 0;
}

struct PendingEviction {
  RegionId region = kNoRegion;  // the region to be made
  int32_t cut = 0;
  int32_t length = 0;   // tokens of the sequence at the order
  int32_t num_own = 0;  // number of own destination blocks
  // The most pages that each shard may use, [num_shards].
  std::vector<int64_t> page_totals;
  // The sequence's own blocks in table order, then the fresh ones. The order
  // holds a fresh block once. An own block has only the reference of its table.
  std::vector<BlockId> destinations;

  // Returns whether the block is an own destination. O(own destinations).
  bool Overwrites(BlockId block) const {
    const auto end = destinations.begin() + num_own;
    return std::find(destinations.begin(), end, block) != end;
  }
};

// Checks that `counts`, [num_layers * num_heads], are a legal answer to an
// order that covers `covered`. Otherwise returns InvalidArgument, which names
// the (layer, head) or the shard.
absl::Status CheckCounts(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts);

// Checks that the page lists which follow from legal counts have this checksum
// (layout_checksum.h). Otherwise returns InvalidArgument, which says what was
// laid out. O(blocks + runs).
absl::Status CheckLayout(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts, uint64_t checksum);

// Returns the region that the order makes. The region has only those
// destination blocks that hold at least one of its pages. REQUIRES:
// CheckCounts(...).ok().
std::shared_ptr<const RegionRecord> MakeRegion(const ModelLayout& layout,
                                               const PendingEviction& pending,
                                               const HeldBlocks& covered,
                                               std::span<const int32_t> counts);

// Returns the page lists of a region, as runs. O(blocks + runs).
RegionLayout LayoutOf(const ModelLayout& layout, const RegionRecord& region);

}  // namespace blockmgr

#endif  // BLOCKMGR_PENDING_EVICTION_H_
