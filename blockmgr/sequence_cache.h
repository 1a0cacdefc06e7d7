// SequenceCache: what one sequence holds: [region] + tail, and how far it got.
//
//   positions   0 .......... cut ................ num_settled ... num_reserved
//               |  region    |  tail blocks, one per page_size tokens        |
//
// A plain record, owned and changed by BlockManager; the const members are the
// arithmetic everybody needs. Of layer group 0; what window groups have is a
// WindowCache each.
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
#include "blockmgr/base/model_layout.h"
#include "blockmgr/pending_eviction.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"
#include "blockmgr/window_region.h"

namespace blockmgr {

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
  // What an eviction of positions [0, cut_position) covers.
  HeldBlocks Covered(int32_t cut_position, int32_t page_size) const {
    const size_t num_tail = std::min(
        static_cast<size_t>((cut_position - cut()) / page_size), tail.size());
    return {.region = region.get(),
            .cut = cut(),
            .tail = std::span(tail).first(num_tail)};
  }
  // Blocks that positions [0, cut_position) are in.
  int32_t BlocksBelow(int32_t cut_position, int32_t page_size) const {
    return (cut_position - cut()) / page_size +
           (region == nullptr ? 0
                              : static_cast<int32_t>(region->blocks.size()));
  }
};

// What a sequence holds in a layer group with a window.
//
//   positions   0 .. first .......... cut ................ num_reserved
//               | out |    region     |  blocks of the tail              |
//
// `first` moves on with every settled token. Entries of the region that it has
// passed count for nothing; when it passes the cut, the region is released.
struct WindowCache : WindowRegion {
  // By page, from position 0 on; null: fell out, or the region stands for it.
  std::vector<BlockId> tail;
  int32_t pending_length = 0;  // region_length of what `pending` makes
  std::unique_ptr<PendingEviction> pending;

  // REQUIRES: those pages are in the table.
  HeldBlocks Covered(const ModelLayout& layout, int32_t group,
                     int32_t cut_position, int32_t length) const {
    const PageRange pages = CoveredPages(layout, group, cut_position, length);
    return {
        .region = IsPast(layout, group, length + 1) ? nullptr : region.get(),
        .cut = pages.begin * layout.page_size,
        .tail = std::span(tail).subspan(static_cast<size_t>(pages.begin),
                                        static_cast<size_t>(pages.size()))};
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SEQUENCE_CACHE_H_
