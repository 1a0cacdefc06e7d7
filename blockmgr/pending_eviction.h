// PendingEviction: an eviction between its order and its acknowledgement, and
// what follows from it by arithmetic.
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

// [region] + tail: of a sequence, of a part of one, or of what one is about to
// have, in one layer group.
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

// Whether both hold the same region, or the same block of some page. (A block
// is never of different pages.) O(pages that both have).
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
  int32_t num_shared = 0;  // all are counted: no branch for each
  for (size_t i = 0; i < num_pages; ++i) {
    num_shared += pages_a[i] == pages_b[i] ? 1 : 0;
  }
  return num_shared > 0;
}

struct PendingEviction {
  RegionId region = kNoRegion;  // that it makes
  int32_t cut = 0;
  int32_t length = 0;   // tokens of the sequence when it was ordered
  int32_t num_own = 0;  // of the destinations
  // Pages that each shard may use, [num_shards].
  std::vector<int64_t> page_totals;
  // Own blocks first, in table order, then fresh ones. Fresh blocks are held
  // once; own blocks keep the reference of the table they are in.
  std::vector<BlockId> destinations;

  // O(own destinations).
  bool Overwrites(BlockId block) const {
    const auto end = destinations.begin() + num_own;
    return std::find(destinations.begin(), end, block) != end;
  }
};

// Whether counts [num_layers * num_heads] are a legal answer to an order that
// covers those blocks; InvalidArgument names the (layer, head) or the shard at
// fault.
absl::Status CheckCounts(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts);

// Whether the page lists that the order makes for legal counts have this
// checksum (layout_checksum.h); InvalidArgument says what was laid out, and
// where the rule is. O(blocks + runs).
absl::Status CheckLayout(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts, uint64_t checksum);

// The region that the order makes of those blocks, on the destinations that it
// has pages on. REQUIRES: CheckCounts(...).ok().
std::shared_ptr<const RegionRecord> MakeRegion(const ModelLayout& layout,
                                               const PendingEviction& pending,
                                               const HeldBlocks& covered,
                                               std::span<const int32_t> counts);

// Page lists of a region, as runs. O(blocks + runs).
RegionLayout LayoutOf(const ModelLayout& layout, const RegionRecord& region);

}  // namespace blockmgr

#endif  // BLOCKMGR_PENDING_EVICTION_H_
