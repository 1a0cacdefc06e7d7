// PrefixMatch: the beginning of a prompt that need not be computed.
#ifndef BLOCKMGR_PREFIX_MATCH_H_
#define BLOCKMGR_PREFIX_MATCH_H_

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/pending_eviction.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// MatchCost counts the blocks that a match costs, in all layer groups together,
// and the looks that the search took.
struct MatchCost {
  // Full blocks and blocks of regions that only the cache holds. Using them
  // costs as much of the available blocks as taking fresh ones.
  int32_t num_reclaimable = 0;
  // Blocks that only the cache holds, and that wait for their fence: they are
  // not available yet.
  int32_t num_cooling = 0;
  // Blocks in groups with a window that others use, too. When the window moves
  // on, the sequence takes blocks of its own in their place.
  int32_t num_moving = 0;
  // Blocks of the regions of window groups that others do not use.
  int32_t num_window_region_blocks = 0;
  // Whether only the cache holds the block with the part.
  bool part_is_reclaimable = false;
  // Pages compared and lengths of regions tried.
  int64_t num_looks = 0;
};

// MatchedGroup is the part of a match in one layer group: perhaps a region,
// then blocks, then blocks in the host tier.
struct MatchedGroup {
  // The region that the sequence will have, or null.
  const RegionRecord* region = nullptr;
  bool region_is_cached = false;
  // The page of the first block. The region stands for the pages before it, or
  // they are outside of the span.
  int32_t first_page = 0;
  // The group's blocks are [begin, end) of PrefixMatch::blocks.
  int32_t begin = 0;
  int32_t end = 0;
  // Blocks taken for what comes back from the host tier.
  int32_t num_region_ins = 0;
  int32_t num_tail_ins = 0;

  int32_t num_region_blocks() const {
    return region == nullptr ? 0 : static_cast<int32_t>(region->blocks.size());
  }
};

// A PrefixMatch names the memory that already holds the first tokens of a
// prompt. It is in the prefix cache, or in a sequence that can be forked. The
// host tier may hold the tokens behind the blocks of the cache.
struct PrefixMatch {
  int32_t num_tokens = 0;  // covered
  // The region's entry in the prefix cache and what the entry stands for.
  // They are PrefixCache::kNone and null if the match has no cached region.
  int32_t region = PrefixCache::kNone;
  const CachedRegion* cached = nullptr;
  // Full blocks, then perhaps one (has_part) of which only the first rows are
  // of use. Groups that are not here have nothing.
  std::vector<BlockId> blocks;
  absl::InlinedVector<MatchedGroup, 1> groups{MatchedGroup()};
  bool has_part = false;
  // The sequence to fork. Then `blocks` does not name blocks with a part, and
  // nothing is reclaimable.
  SequenceSlot source = kNoSequenceSlot;
  SwapId swap = kNoSwap;  // the swapped-out sequence whose KV comes back
  // The tokens computed when the region of `source` or of `swap` was made. The
  // caller of MatchFork sets it.
  int32_t source_length = 0;

  MatchCost cost;

  // Returns the region of the index group, or null.
  const RegionRecord* record() const { return groups.front().region; }
  int32_t cut() const { return record() == nullptr ? 0 : record()->cut; }
  // Returns the tokens computed when the region was made. Returns 0 if there is
  // no region.
  int32_t length() const {
    return cached == nullptr ? source_length : cached->length();
  }
  int32_t num_region_blocks() const {
    return groups.front().num_region_blocks();
  }
  // Returns how many blocks are taken for a region that comes back.
  int32_t num_region_ins() const { return groups.front().num_region_ins; }
  // Returns the blocks of a group.
  std::span<const BlockId> blocks_of(int32_t group) const {
    const MatchedGroup& own = groups[group];
    return std::span(blocks).subspan(own.begin, own.end - own.begin);
  }
  // Returns the region and the full blocks of the index group.
  HeldBlocks held(int32_t page_size) const {
    const std::span<const BlockId> own = blocks_of(0);
    return {.region = record(),
            .cut = groups.front().first_page * page_size,
            .tail = own.first(own.size() - (has_part ? 1 : 0))};
  }
  // Returns the entry that the next block of the index group follows. Returns
  // PrefixCache::kNone for the root.
  int32_t last_entry() const {
    const std::span<const BlockId> own = blocks_of(0);
    // The tail block of a region is not part of the region's chain.
    if (cached != nullptr && own.size() == 1) return region;
    return own.empty() ? PrefixCache::kNone : Index(own.back());
  }
  // Returns how many blocks the sequence will hold of the match. A part is
  // copied, and does not count.
  int32_t CountBlocks() const {
    int32_t count = has_part ? -1 : 0;
    for (const MatchedGroup& own : groups) {
      count += own.num_region_blocks() + own.end - own.begin + own.num_tail_ins;
    }
    return count;
  }
  // Returns how many of CountBlocks() come back from the host tier.
  int32_t CountIns() const {
    int32_t count = 0;
    for (const MatchedGroup& own : groups) {
      count += own.num_region_ins + own.num_tail_ins;
    }
    return count;
  }
  // Returns how many of CountBlocks() cost as much of the available blocks as
  // fresh ones.
  int32_t CountTaken() const { return cost.num_reclaimable + CountIns(); }
  // Returns how many of CountBlocks() need never be taken: others use them.
  int32_t CountSaved() const {
    return CountBlocks() - CountTaken() - cost.num_moving;
  }
  // Shortens the match to its full blocks.
  void DropPart(int32_t page_size) {
    if (!has_part) return;
    blocks.pop_back();
    --groups.front().end;
    num_tokens -= num_tokens % page_size;
    has_part = cost.part_is_reclaimable = false;
  }
};

// Memory of matches that are of no use any more, for the next ones: a planner
// that looks up prefixes in every step allocates nothing in a steady state.
class MatchMemory {
 public:
  // Returns an empty match.
  PrefixMatch Take() {
    PrefixMatch match;
    if (num_spare_ == 0) return match;
    std::swap(match.blocks, spare_[--num_spare_].blocks);
    std::swap(match.groups, spare_[num_spare_].groups);
    return match;
  }
  void Give(PrefixMatch match) {
    if (num_spare_ == spare_.size()) return;
    PrefixMatch& spare = spare_[num_spare_++];
    spare.blocks = std::move(match.blocks);
    spare.groups = std::move(match.groups);
    spare.blocks.clear();
    spare.groups.assign(1, MatchedGroup());
    if (num_spare_ < spare_.size()) return;
    // A search uses two matches and keeps the longer one. Both get room for the
    // longest, because either may be kept.
    spare_[0].blocks.reserve(spare_[1].blocks.capacity());
    spare_[1].blocks.reserve(spare_[0].blocks.capacity());
  }

 private:
  std::array<PrefixMatch, 2> spare_;  // matches without blocks
  size_t num_spare_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_MATCH_H_
