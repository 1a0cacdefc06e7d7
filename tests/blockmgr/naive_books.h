// NaiveBooks: the state that all parts of NaiveModel share. Sequences, the
// blocks that they hold, the steps that may touch a block, and what the engine
// has written.
//
// A layer group is the unit. BookRules has the rules that differ by its window.
#ifndef TESTS_BLOCKMGR_NAIVE_BOOKS_H_
#define TESTS_BLOCKMGR_NAIVE_BOOKS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/testing/books.h"

namespace blockmgr {

// NaiveGroup is the record of one layer group of a sequence.
struct NaiveGroup : GroupBook {
  // The values that the engine has written, by position: see
  // NaiveModel::Execute. A position in a region has no known value, nor has one
  // that was found in the cache and that the group does not need.
  std::vector<uint64_t> values = {};
  // Whether there was an eviction. Its region may have left the window.
  bool was_evicted = false;

  // Returns the block of a page, or null.
  BlockId At(int32_t page) const {
    return page < std::ssize(pages) ? pages[page] : kNullBlock;
  }
};

struct NaiveSequence {
  std::vector<int32_t> tokens;  // from position 0
  int32_t scope = 0;            // sequences of other scopes share nothing
  std::vector<RetentionRange> wishes;
  BlockChain names;
  std::vector<NaiveGroup> groups;
  int32_t num_reserved = 0;
  int32_t num_settled = 0;
  int32_t num_found = 0;   // came from the cache
  bool was_writer = true;  // of its last block, before what is not settled
  // The name that a region was published as. Empty: it was not.
  std::string context;
  uint64_t lineage = 0;  // of the region that new positions are computed over

  int32_t num_offered = 0;  // blocks, to the cache
  uint64_t chain = 1;       // entry that precedes the next one; 0: broken

  // The region of group 0.
  const BookRegion& region() const { return groups[0].region; }
  int32_t cut() const { return region().cut; }
  // Whether an order is on its way, in any group.
  bool has_pending() const {
    return std::ranges::any_of(groups, [](const NaiveGroup& group) {
      return group.pending.has_value();
    });
  }
  // The first tokens that must stay as they are for them.
  int32_t CountOrdered() const {
    int32_t num_tokens = 0;
    for (const NaiveGroup& group : groups) {
      if (!group.pending.has_value()) continue;
      num_tokens =
          std::max({num_tokens, group.pending->cut, group.pending->length});
    }
    return num_tokens;
  }
  bool was_evicted() const {
    return std::ranges::any_of(groups, &NaiveGroup::was_evicted);
  }
  // Returns the blocks of all groups: of tables, regions and orders.
  std::vector<BlockId> Held() const;
};

// A page of a sequence by its group and number; or a block of the group's
// region, the last of which is number -1.
using NaivePiece = std::pair<int32_t, int32_t>;

// NaiveMatch names the memory that has the first tokens of a prompt.
struct NaiveMatch {
  int32_t num_tokens = 0;
  uint64_t region = 0;  // its entry in the cache; 0: none
  // The blocks found in the cache, by group, as in GroupBook. Empty: none.
  std::vector<BookRegion> regions;
  std::vector<std::vector<BlockId>> pages;
  bool has_part = false;  // the last page of group 0, of a few tokens
  SwapId swap = kNoSwap;
  std::vector<NaivePiece> ins;  // what comes back, in order
  // Blocks of the cache that nobody uses; those that others use in windows.
  int32_t num_reclaimable = 0;
  int32_t num_cooling = 0;
  int32_t num_moving = 0;
  bool part_is_reclaimable = false;
  bool is_shortened = false;        // a group lacks a page
  bool has_refused_region = false;  // likewise

  explicit NaiveMatch(int32_t num_groups = 1)
      : regions(num_groups), pages(num_groups) {}
  int32_t cut() const { return regions[0].cut; }
  // Returns how many blocks of a group come back: of its region, or of its
  // pages.
  int32_t CountIns(int32_t group, bool of_region) const;
  void DropPart(int32_t page_size);
};

// Counts of the events that are rare in models with windows.
struct NaiveTally {
  int64_t fallen_blocks = 0;  // out of windows
  int64_t shortened_matches = 0;
  int64_t refused_regions = 0;       // by Match
  int64_t reclaimed_alone = 0;       // window blocks
  int64_t orphans = 0;               // that went with what led to them
  int64_t orphans_in_use = 0;        // of those
  int64_t orphans_in_fence = 0;      // likewise
  int64_t linked_alone = 0;          // that only a region leads to
  int64_t adopted_windows = 0;       // found by another sequence's block
  int64_t unpublished_regions = 0;   // for want of a window page
  int64_t regions_with_windows = 0;  // matched, with pages before the cut
  int64_t replaced_regions = 0;      // equal ones that lacked a window
  int64_t stuck = 0;                 // emptied by loss: it could not go back
  int64_t window_regions = 0;        // made
  int64_t window_regions_again = 0;  // in place of one before
  int64_t fallen_regions = 0;        // out of windows
  int64_t spared_windows = 0;        // not published: about to be overwritten
  int64_t published_window_regions = 0;
  int64_t linked_window_regions = 0;   // that others have linked before
  int64_t found_window_regions = 0;    // by matches
  int64_t passed_window_regions = 0;   // the match has left them behind
  int64_t missing_window_regions = 0;  // so that a match is refused
  int64_t reclaimed_window_regions = 0;
  int64_t dropped_window_regions = 0;  // with the last that led to them
};

// NaiveFences knows the steps that may touch a block, and the order in which
// blocks were released.
class NaiveFences {
 public:
  explicit NaiveFences(int32_t num_blocks)
      : touched_(num_blocks, 0), released_(num_blocks, 0) {}

  bool has_steps_in_flight() const { return dispatched_ > acknowledged_; }
  uint64_t dispatched() const { return dispatched_; }
  uint64_t acknowledged() const { return acknowledged_; }
  // Whether no step in flight has seen the block in a table.
  bool IsSafe(BlockId block) const {
    return touched_[Index(block)] <= acknowledged_;
  }
  // Whether no step is in flight of those when the last holder left.
  bool IsPast(BlockId block) const {
    return released_[Index(block)] <= acknowledged_;
  }
  // The order in which blocks were released.
  uint64_t AgeOf(BlockId block) const { return left_.at(block); }
  void Release(BlockId block);
  // Makes it the last that was released, under the same fence.
  void Rejuvenate(BlockId block) { left_[block] = next_left_++; }
  void Dispatch(uint64_t step, const std::vector<int32_t>& holders);
  void Acknowledge(uint64_t step);
  // The cache was emptied while steps were in flight: blocks may wait for a
  // later step than theirs, never for an earlier one.
  bool are_bounds() const { return are_bounds_; }
  void MakeBounds(bool bounds) { are_bounds_ = bounds; }

 private:
  uint64_t dispatched_ = 0;
  uint64_t acknowledged_ = 0;
  std::vector<uint64_t> touched_;   // newest step that saw the block in a table
  std::vector<uint64_t> released_;  // newest step when the last holder left
  std::map<BlockId, uint64_t> left_;
  uint64_t next_left_ = 1;
  bool are_bounds_ = false;
};

// NaiveArena has what the engine has written.
struct NaiveArena {
  // Full blocks.
  struct Written {
    std::vector<int32_t> prefix;  // all tokens up to the block's end
    std::string context;  // what they were computed over: nothing, or a region
    int32_t group = 0;
    friend bool operator==(const Written&, const Written&) = default;
  };
  std::map<BlockId, Written> written;
  std::map<std::pair<BlockId, int32_t>, uint64_t> rows;
  std::map<std::pair<HostBlockId, int32_t>, uint64_t> host_rows;

  void Clear(BlockId block);
  // Copies rows to or from the host tier.
  void CopyOut(const BlockTransfer& transfer);
  void CopyIn(const BlockTransfer& transfer);
};

struct NaiveBooks {
  NaiveBooks(const ModelLayout& model_layout, NaiveTally* counts)
      : layout(model_layout),
        rules(model_layout),
        tally(counts),
        fences(model_layout.num_blocks) {}

  int32_t num_groups() const {
    return 1 + static_cast<int32_t>(layout.group_windows.size());
  }
  // Sequences that hold each block, and planned copies from it.
  std::vector<int32_t> Holders() const;
  std::vector<int32_t> Prefix(const std::vector<int32_t>& tokens,
                              int32_t num_blocks) const;
  // Returns the pieces that the first num_tokens need, in order.
  std::vector<NaivePiece> PiecesOf(const NaiveSequence& sequence,
                                   int32_t num_tokens) const;
  static BlockId BlockOf(const NaiveSequence& sequence,
                         const NaivePiece& piece);
  // Whether every group has all pages that the settled tokens need.
  bool IsWhole(const NaiveSequence& sequence) const;
  // Tokens computed from now on are nobody else's.
  void BreakChain(NaiveSequence* sequence);

  const ModelLayout layout;
  const BookRules rules;
  NaiveTally* const tally;
  std::map<SequenceSlot, NaiveSequence> sequences;
  // Copies of the step being planned. Sources are held until its dispatch.
  std::vector<CopyOnWrite> copies;
  NaiveFences fences;
  NaiveArena arena;
  uint64_t next_name = 2;  // of what nothing else is named as
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_BOOKS_H_
