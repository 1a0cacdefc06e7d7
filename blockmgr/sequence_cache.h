// SequenceCache: what one sequence holds: [region] + tail, and how far it got.
//
//   positions   0 .......... cut ................ num_settled ... num_reserved
//               |  region    |  tail blocks, one per page_size tokens        |
//
// A plain record, owned and changed by BlockManager; the const members are the
// arithmetic everybody needs. Of layer group 0; the tables of window groups,
// which are no more than tables, are BlockManager's (window_tail).
//
// num_reserved: positions with a slot. num_settled <= num_reserved: positions
// whose step has been acknowledged.
#ifndef BLOCKMGR_SEQUENCE_CACHE_H_
#define BLOCKMGR_SEQUENCE_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// An eviction between its order and its acknowledgement.
struct PendingEviction {
  RegionId region = kNoRegion;  // that it makes
  int32_t cut = 0;
  int32_t num_own = 0;               // of the destinations
  std::vector<int64_t> page_totals;  // that shards may use, [num_shards]
  // Own blocks first, in table order, then fresh ones. Fresh blocks are held
  // once; own blocks keep the reference of the table they are in.
  std::vector<BlockId> destinations;
};

// Three cache lines: a decode step goes through one of each running sequence.
struct SequenceCache {
  std::shared_ptr<const RegionRecord> region;
  std::vector<BlockId> tail;
  int32_t num_reserved = 0;
  int32_t num_settled = 0;
  bool open = false;
  // Others may hold the last block, which is partly filled: look before writing
  // to it. Then num_settled == num_reserved. Of the sequences that hold a block
  // at most one may write to it, and the others' rows come before its own.
  bool shares_last_block = false;
  // What shares_last_block was when the first of the positions that are not
  // settled was reserved, and is again when the last of them is given back.
  bool shared_when_settled = false;
  std::optional<PendingEviction> pending;
  int32_t num_found = 0;  // positions that came from the prefix cache

  // Publication: the blocks of the first num_published pages of positions have
  // been offered to the prefix cache, over a region those after it;
  // chain_serial names the entry of the last of them (or of the region), which
  // chain_entry is as long as it has that serial. kNoSerial: the chain is
  // broken and nothing more is published.
  int32_t num_published = 0;
  EntrySerial chain_serial = kNoSerial;
  int32_t chain_entry = 0;
  BlockKey chain_key;                   // of the last of them, over a region
  EntrySerial root_serial = kNoSerial;  // held in the prefix cache
  // Of the last region found or published; null: none yet.
  std::shared_ptr<const RegionContent> content;

  int32_t cut() const { return region == nullptr ? 0 : region->cut; }
  int32_t num_blocks() const {
    return static_cast<int32_t>(tail.size()) +
           (region == nullptr ? 0
                              : static_cast<int32_t>(region->blocks.size()));
  }
  // Blocks to be added to hold `num_tokens` more positions.
  int32_t BlocksFor(int32_t num_tokens, int32_t page_size) const {
    return CeilDiv(num_reserved + num_tokens - cut(), page_size) -
           static_cast<int32_t>(tail.size());
  }
  // Blocks that positions [0, cut_position) are in.
  int32_t BlocksBelow(int32_t cut_position, int32_t page_size) const {
    return (cut_position - cut()) / page_size +
           (region == nullptr ? 0
                              : static_cast<int32_t>(region->blocks.size()));
  }
};

// [region] + tail, of a sequence or of what one is about to have.
struct HeldBlocks {
  const RegionRecord* region = nullptr;
  int32_t cut = 0;
  std::span<const BlockId> tail;
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

}  // namespace blockmgr

#endif  // BLOCKMGR_SEQUENCE_CACHE_H_
