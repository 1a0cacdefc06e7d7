// PrefixMatch: the beginning of a prompt that need not be computed.
#ifndef BLOCKMGR_PREFIX_MATCH_H_
#define BLOCKMGR_PREFIX_MATCH_H_

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// MatchCost counts the blocks that a match costs, in all layer groups together,
// and the looks that the search took.
struct MatchCost {
  // Blocks that only the cache holds: full ones, those of the region, and those
  // of window groups. Using them costs as much of the available blocks as
  // taking fresh ones.
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

// A PrefixMatch names the memory that already holds the first tokens of a
// prompt: perhaps a region, then blocks. They are in the prefix cache, or in a
// sequence that can be forked. The host tier may hold the tokens behind the
// blocks of the cache.
struct PrefixMatch {
  int32_t num_tokens = 0;  // covered
  // The region's entry in the prefix cache and what the entry stands for.
  // PrefixCache::kNone and null: no region of the cache.
  int32_t region = PrefixCache::kNone;
  const CachedRegion* cached = nullptr;
  // The blocks of group 0 from the region's cut on: full ones, then perhaps one
  // (has_part) of which only the first rows are of use. In a group with a
  // window, the first num_out pages are outside of it, and null.
  std::vector<BlockId> blocks;
  int32_t num_out = 0;
  bool has_part = false;
  // For a prefix in the cache: the blocks of each window group in turn, from
  // the page FirstPage on.
  std::vector<BlockId> window_blocks;
  // The number of blocks that the window groups of the sequence will hold of
  // the match, from the cache, from `source` or from the host tier.
  int32_t num_window_blocks = 0;
  // The sequence to fork. Then `blocks` does not name the block with a part,
  // and nothing is reclaimable.
  SequenceSlot source = kNoSequenceSlot;
  // The swapped-out sequence whose KV comes back: the last num_tail_ins blocks
  // of group 0, all that the window groups have, and the region unless it is
  // cached.
  SwapId swap = kNoSwap;
  int32_t num_tail_ins = 0;
  // The region of `source` or of `swap`, and the tokens computed when it was
  // made. Null and 0: none. The caller of MatchFork sets the length.
  const RegionRecord* source_region = nullptr;
  int32_t source_length = 0;

  MatchCost cost;

  // Returns the region of group 0. Null: none.
  const RegionRecord* record() const {
    return cached == nullptr ? source_region : cached->record.get();
  }
  int32_t cut() const { return record() == nullptr ? 0 : record()->cut; }
  // Returns `blocks` without the one that holds only a part.
  std::span<const BlockId> full_blocks() const {
    return std::span(blocks).first(blocks.size() - (has_part ? 1 : 0));
  }
  // Returns the tokens computed when the region was made. 0: no region.
  int32_t length() const {
    return cached == nullptr ? source_length : cached->length;
  }
  int32_t num_region_blocks() const {
    return record() == nullptr ? 0
                               : static_cast<int32_t>(record()->blocks.size());
  }
  // Returns how many blocks are taken for a region that comes back.
  int32_t num_region_ins() const {
    return swap == kNoSwap || cached != nullptr ? 0 : num_region_blocks();
  }
  // Returns how many blocks the sequence will hold of the match. A part is
  // copied, and does not count.
  int32_t num_blocks() const {
    return static_cast<int32_t>(blocks.size()) - num_out - (has_part ? 1 : 0) +
           num_tail_ins + num_region_blocks() + num_window_blocks;
  }
  // Returns how many of num_blocks() come back from the host tier.
  int32_t num_ins() const {
    return swap == kNoSwap
               ? 0
               : num_tail_ins + num_region_ins() + num_window_blocks;
  }
  // Returns how many of num_blocks() cost as much of the available blocks as
  // fresh ones.
  int32_t num_taken() const { return cost.num_reclaimable + num_ins(); }
  // Returns how many of num_blocks() need never be taken: others use them.
  int32_t num_saved() const {
    return num_blocks() - num_taken() - cost.num_moving;
  }
  // Shortens the match to its full blocks.
  void DropPart(int32_t page_size) {
    if (!has_part) return;
    blocks.pop_back();
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
    Spare& spare = spare_[--num_spare_];
    match.blocks = std::move(spare.blocks);
    match.window_blocks = std::move(spare.window_blocks);
    return match;
  }
  void Give(PrefixMatch match) {
    if (num_spare_ == spare_.size()) return;
    Spare& spare = spare_[num_spare_++];
    spare.blocks = std::move(match.blocks);
    spare.window_blocks = std::move(match.window_blocks);
    spare.blocks.clear();
    spare.window_blocks.clear();
    if (num_spare_ < spare_.size()) return;
    // A search uses two matches and keeps the longer one. Both get room for the
    // longest, because either may be kept.
    for (const auto blocks : {&Spare::blocks, &Spare::window_blocks}) {
      (spare_[0].*blocks).reserve((spare_[1].*blocks).capacity());
      (spare_[1].*blocks).reserve((spare_[0].*blocks).capacity());
    }
  }

 private:
  struct Spare {
    std::vector<BlockId> blocks;
    std::vector<BlockId> window_blocks;
  };
  std::array<Spare, 2> spare_;
  size_t num_spare_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_MATCH_H_
