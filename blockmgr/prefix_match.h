// PrefixMatch: the beginning of a prompt that need not be computed.
#ifndef BLOCKMGR_PREFIX_MATCH_H_
#define BLOCKMGR_PREFIX_MATCH_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// What holds the first tokens of a prompt already: perhaps a region, then
// blocks, in the prefix cache or in a sequence that can be forked; and perhaps,
// behind those of the cache, the host tier.
struct PrefixMatch {
  int32_t num_tokens = 0;  // covered
  // Entry of the prefix cache, or PrefixCache::kNone; then `cached` tells what
  // it stands for.
  int32_t region = PrefixCache::kNone;
  const CachedRegion* cached = nullptr;
  // The full ones, then perhaps one of which only the first rows are of use.
  // With a window, the first num_out are outside of it, and null.
  std::vector<BlockId> blocks;
  int32_t num_out = 0;
  // Of a prefix in the cache, of each window group in turn the pages from
  // FirstPage on.
  std::vector<BlockId> window_blocks;
  // What the window groups hold of it in the end, wherever it comes from.
  int32_t num_window_blocks = 0;
  // Of what is held in groups with a window, blocks that others use, too: when
  // the window moves on, own ones take their place.
  int32_t num_moving = 0;
  bool has_part = false;
  bool part_is_reclaimable = false;
  // Full blocks, the region's too, that only the cache holds: using them costs
  // as much of the available blocks as taking fresh ones.
  int32_t num_reclaimable = 0;
  // Likewise, but waiting for their fence: they are not available yet.
  int32_t num_cooling = 0;
  // What looking for it took: pages compared and lengths of regions tried.
  int64_t num_looks = 0;
  // The sequence, if it is one; then there may be a part of a block that is
  // not named, and nothing is reclaimable.
  SequenceSlot source = kNoSequenceSlot;
  // The sequence that was swapped out, if its KV comes back: the last
  // num_tail_ins blocks of the tail, what the window groups have, and the
  // region unless it is cached.
  SwapId swap = kNoSwap;
  int32_t num_tail_ins = 0;
  // Of num_window_blocks, those of regions that others do not use.
  int32_t num_window_region_blocks = 0;
  // Of `source`, or of `swap`.
  const RegionRecord* source_region = nullptr;
  int32_t source_length = 0;  // see length(); set by whoever knows
  // Memory of matches that were not as long as this one.
  std::vector<BlockId> spare_blocks;
  std::vector<BlockId> spare_window_blocks;

  // An empty one that takes the memory of one that is of no use any more.
  static PrefixMatch InMemoryOf(PrefixMatch used) {
    PrefixMatch match;
    match.blocks = std::move(used.blocks);
    match.window_blocks = std::move(used.window_blocks);
    match.spare_blocks = std::move(used.spare_blocks);
    match.spare_window_blocks = std::move(used.spare_window_blocks);
    match.blocks.clear();
    match.window_blocks.clear();
    return match;
  }
  // Another match in this one's spare memory, and back: then either has room
  // for as many blocks as the other, whichever is kept.
  PrefixMatch TakeSpare() {
    PrefixMatch match;
    match.blocks = std::move(spare_blocks);
    match.window_blocks = std::move(spare_window_blocks);
    return InMemoryOf(std::move(match));
  }
  void GiveSpare(PrefixMatch match) {
    spare_blocks = std::move(match.blocks);
    spare_window_blocks = std::move(match.window_blocks);
    spare_blocks.reserve(blocks.capacity());
    blocks.reserve(spare_blocks.capacity());
    spare_window_blocks.reserve(window_blocks.capacity());
    window_blocks.reserve(spare_window_blocks.capacity());
  }

  // Null without a region.
  const RegionRecord* record() const {
    return cached == nullptr ? source_region : cached->record.get();
  }
  int32_t cut() const { return record() == nullptr ? 0 : record()->cut; }
  // Without the one of which only the first rows are of use.
  std::span<const BlockId> full_blocks() const {
    return std::span(blocks).first(blocks.size() - (has_part ? 1 : 0));
  }
  // Tokens computed when the region was made; 0: without one.
  int32_t length() const {
    return cached == nullptr ? source_length : cached->length;
  }
  int32_t num_region_blocks() const {
    return record() == nullptr ? 0
                               : static_cast<int32_t>(record()->blocks.size());
  }
  // Of those, blocks to be taken for a region that comes back.
  int32_t num_region_ins() const {
    return swap == kNoSwap || cached != nullptr ? 0 : num_region_blocks();
  }
  // What is held of it in the end: a part is copied.
  int32_t num_blocks() const {
    return static_cast<int32_t>(blocks.size()) - num_out - (has_part ? 1 : 0) +
           num_tail_ins + num_region_blocks() + num_window_blocks;
  }
  // Of those, the ones that come back.
  int32_t num_ins() const {
    return swap == kNoSwap
               ? 0
               : num_tail_ins + num_region_ins() + num_window_blocks;
  }
  // Of those, how many cost as much of the available blocks as fresh ones.
  int32_t num_taken() const { return num_reclaimable + num_ins(); }
  // Of num_blocks(), those that need never be taken: others use them.
  int32_t num_saved() const { return num_blocks() - num_taken() - num_moving; }
  // The same without the part.
  void DropPart(int32_t page_size) {
    if (!has_part) return;
    blocks.pop_back();
    num_tokens -= num_tokens % page_size;
    has_part = part_is_reclaimable = false;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_MATCH_H_
