// A naive twin of BlockManager: maps, sets and full recounts.
//
// It does not choose blocks: it is told which ones the product chose, says
// whether they were allowed, and recounts everything from the tables alone.
// Violations are GoogleTest failures.
#ifndef TESTS_BLOCKMGR_NAIVE_MODEL_H_
#define TESTS_BLOCKMGR_NAIVE_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/testing/books.h"

namespace blockmgr {

// NaiveGroup is the record of one layer group of a sequence.
struct NaiveGroup : GroupBook {
  // The values that the engine has written, by position: see
  // NaiveModel::Execute. A position in a region has no known value, nor has one
  // that was found in the cache and that the group does not need.
  std::vector<uint64_t> values = {};
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
  bool was_evicted_in_windows = false;
  // What a region was published as; empty for one that was not.
  std::string context;
  uint64_t lineage = 0;  // of the region that new positions are computed over

  int32_t num_offered = 0;  // blocks, to the cache
  uint64_t chain = 1;       // entry that precedes the next one; 0: broken

  // Of group 0.
  const BookRegion& region() const { return groups[0].region; }
  int32_t cut() const { return region().cut; }
  // Whether an order is on its way, in any group.
  bool has_pending() const {
    return std::ranges::any_of(groups, [](const NaiveGroup& group) {
      return group.pending.has_value();
    });
  }
  // The first tokens that must stay as they are for them.
  int32_t num_ordered() const {
    int32_t num_tokens = 0;
    for (const NaiveGroup& group : groups) {
      if (!group.pending.has_value()) continue;
      num_tokens =
          std::max({num_tokens, group.pending->cut, group.pending->length});
    }
    return num_tokens;
  }
};

// The reservation of a sequence in one step.
struct NaiveRun {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
};

// What has become of a match.
struct NaiveMatch : PrefixMatch {
  // `blocks` are those of group 0 from the cut on. The first num_out have left
  // the window, and are null.
  int32_t num_out = 0;
  std::vector<BlockId> window_blocks;  // of each window group in turn
  int32_t num_window_blocks = 0;       // with those that come back
  int32_t num_tail_ins = 0;            // of group 0
  bool is_shortened = false;           // by a window that is not there
  bool has_refused_region = false;     // likewise
  int32_t num_ins = 0;                 // blocks that come back
};

// How often it met what is rare in models with windows.
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

class NaiveModel {
 public:
  NaiveModel(const ModelLayout& layout, bool caching, int32_t num_host_blocks,
             NaiveTally* tally);

  bool has_steps_in_flight() const { return dispatched_ > acknowledged_; }
  const std::map<SequenceSlot, NaiveSequence>& sequences() const {
    return sequences_;
  }
  NaiveSequence& at(SequenceSlot slot) { return sequences_.at(slot); }
  const NaiveSequence& at(SequenceSlot slot) const {
    return sequences_.at(slot);
  }
  int32_t num_cached_regions() const;  // of group 0
  int32_t num_cached_blocks() const;
  // Blocks that regions have in windows, and nobody uses.
  std::vector<BlockId> IdleWindowsOfRegions() const;

  // Compares all counters and tables, and what is derived from them.
  void Check(const BlockManager& manager) const;
  // The same of the regions of all groups.
  void CheckRegions(const BlockManager& manager, SequenceSlot slot) const;

  // Blocks a prompt can start with, and how many only the cache holds.
  // The entry of a region is its id here.
  NaiveMatch Match(int32_t scope, const std::vector<int32_t>& tokens,
                   int32_t max_tokens, const RegionQuery* query) const;
  // Extends it by a part of a block.
  void MatchPart(int32_t scope, const std::vector<int32_t>& tokens,
                 int32_t max_tokens, PrefixMatch* match) const;
  // `sequence` has tokens, scope and wishes.
  void Open(SequenceSlot slot, NaiveSequence sequence, const NaiveMatch& match);
  int32_t BlocksNeeded(SequenceSlot slot, int32_t num_tokens) const;
  // `blocks` were handed out while num_free blocks were free: they are
  // nobody's, out of reach of the steps in flight, and the oldest cached ones
  // made room. Returns how many had to be reclaimed.
  int32_t HandOut(std::span<const BlockId> blocks, int32_t num_free);
  void Reserve(SequenceSlot slot, int32_t num_tokens,
               std::span<const BlockId> blocks);
  // The demands, in their order, that write into a block which somebody else
  // holds, and so must leave it.
  std::vector<TokenDemand> Leavers(std::span<const TokenDemand> demands) const;
  // A leaver does; before its Reserve.
  void Leave(const CopyOnWrite& copy);
  bool CanFork(SequenceSlot slot) const;
  bool IsWriter(SequenceSlot slot, BlockId block) const;
  // Whether all is there that the position after the first num_tokens attends
  // to, and the rest of its own page.
  bool CanGoBack(SequenceSlot slot, int32_t num_tokens) const;
  // Blocks wholly before `num_tokens` that it holds in all groups, and its
  // region's.
  int32_t NumFullBlocks(SequenceSlot slot, int32_t num_tokens) const;
  // The child has the parent's first num_tokens; the parent does not change.
  void Fork(SequenceSlot parent, SequenceSlot child, int32_t num_tokens);
  void Abort(SequenceSlot slot, int32_t num_tokens);
  void Rollback(SequenceSlot slot, int32_t num_tokens);
  void CutBack(SequenceSlot slot, int32_t num_tokens);
  // What is left of every sequence that loses something, by slot; the blocks
  // are poisoned, the sequences cut back.
  std::map<SequenceSlot, int32_t> LoseBlocks(const std::set<BlockId>& lost);
  bool WillPublish(SequenceSlot slot, int32_t num_tokens) const;
  void Commit(SequenceSlot slot, int32_t num_tokens);
  void Close(SequenceSlot slot);

  // What an eviction of [0, cut) covers in a window group when `length` tokens
  // are computed, of what the next one attends to.
  BookCover CoveredBy(SequenceSlot slot, int32_t group, int32_t cut,
                      int32_t length) const {
    return rules_.CoveredBy(at(slot).groups[group], group, cut, length);
  }
  // Those that are taken already and held by this sequence alone.
  std::vector<BlockId> OwnBlocks(SequenceSlot slot, int32_t cut,
                                 int32_t group = 0, int32_t length = 0) const;
  // The entries that each head has of what a pending order covers.
  std::vector<int32_t> EntriesCovered(SequenceSlot slot, int32_t group) const {
    return rules_.EntriesCovered(at(slot).groups[group], group);
  }
  int32_t NumOwnBlocks(SequenceSlot slot, int32_t cut) const;
  int32_t NumReleasable(SequenceSlot slot) const;
  // Takes over an order into its own blocks. Returns how many cache entries
  // that costs. Fresh destinations, which HandOut has seen, may follow.
  int32_t ReserveEviction(SequenceSlot slot, int32_t group, BookOrder order);
  EvictionReceipt CommitEviction(SequenceSlot slot, int32_t group,
                                 const std::vector<int32_t>& counts,
                                 const RegionName* name);
  void AbortEviction(SequenceSlot slot, int32_t group);

  // Host blocks that swapping the sequence out takes; none: it cannot be, as a
  // window lacks a page.
  std::optional<int32_t> HostBlocksNeeded(SequenceSlot slot) const;
  int32_t num_free_host() const;
  // Swapped out, and not on their way back, by id.
  std::vector<SwapId> Swaps() const;
  const NaiveSequence& SwappedAt(SwapId swap) const {
    return swaps_.at(swap).sequence;
  }
  // Whether copies are planned.
  bool has_copies() const { return !copies_.empty(); }
  // The copies are what the product says; they are made at once.
  void SwapOut(SequenceSlot slot, SwapId swap,
               std::span<const BlockTransfer> transfers);
  // Whether what is computed over a match's region is the same as over that of
  // a swapped sequence; both may have none.
  bool HasPastOf(SwapId swap, const PrefixMatch& match) const;
  void MatchSwapped(SwapId swap, int32_t num_tokens, NaiveMatch* match) const;
  // Opens what comes back, `transfers` by choice of the product.
  void SwapIn(SequenceSlot slot, const NaiveMatch& match,
              std::span<const BlockTransfer> transfers, int32_t num_free);
  void DropSwapped(SwapId swap);
  // Those that hold one, which are dropped.
  std::vector<SwapId> LoseHostBlocks(const std::set<HostBlockId>& lost);

  // Does what the engine does in the step about to be dispatched: the planned
  // copies, then the rows of the runs. Afterwards every sequence must find all
  // its rows as it wrote them.
  void Execute(std::span<const NaiveRun> runs);
  void Dispatch(uint64_t step);
  void Acknowledge(uint64_t step);
  void ResetPrefixCache();
  void LoseEngine();
  void SetTime(int64_t now_ms);
  // Gives blocks that have become reclaimable their place in the order. To be
  // called after every operation.
  void Line();

 private:
  // The wishes that decide when an entry of the cache is reclaimed.
  struct Wished {
    bool superseded = false;  // by a region; then the priority tells
    Retention retention;
    uint64_t wish = 0;  // in order of the wishes
  };
  struct Entry : Wished {
    std::vector<int32_t> prefix;  // all tokens up to the block's end
    int32_t scope = 0;
    uint64_t id = 0;
    uint64_t parent = 0;
    // Of a window group, without prefix or parent; `of` is the entry that it is
    // found by, 0: only regions lead to it.
    int32_t group = 0;
    uint64_t of = 0;
  };
  // A block and its entry.
  using Link = std::pair<BlockId, uint64_t>;
  // A region leads to these in a window group: the group's region and its entry
  // (0: it has no block), and, by page, what is in the window at name.length
  // behind that.
  struct Window {
    BookRegion region;
    uint64_t id = 0;
    std::map<int32_t, Link> pages;
  };
  struct Region : Wished {
    int32_t scope = 0;
    RegionName name;
    std::vector<int32_t> tokens;  // [0, name.length)
    BookRegion book;
    BlockId tail = kNullBlock;
    uint64_t tail_id = 0;  // entry of the tail block
    // Above 0: of a window group, without name; only others lead to it.
    int32_t group = 0;
    std::map<int32_t, Window> windows;  // by group
    uint64_t lineage = 0;
  };
  using Content = std::tuple<int32_t, uint64_t, std::vector<int32_t>>;
  static Content ContentOf(const Entry& entry) {
    return {entry.scope, entry.parent, entry.prefix};
  }
  static std::string ContextOf(const RegionName& name);
  // The cached region that has this block; 0: none.
  uint64_t RegionWith(BlockId block) const;
  bool IsCached(BlockId block) const {
    return cached_.contains(block) || RegionWith(block) != 0;
  }
  // The region a sequence can start with, 0 without any.
  uint64_t MatchRegion(int32_t scope, const std::vector<int32_t>& tokens,
                       const RegionQuery& query, int32_t max_length) const;
  // Nothing computed from now on is anybody else's.
  void BreakChain(NaiveSequence* sequence);
  bool PublishRegion(NaiveSequence* sequence, const RegionName& name,
                     bool* is_new);
  void DropRegion(uint64_t id);
  // A planned copy of this sequence goes back to its source, if there is one.
  void Return(SequenceSlot slot);
  // Of its last block, if it is partly filled.
  void StopWriting(SequenceSlot slot);
  // Gives up the pages wholly behind the first num_tokens positions; `seen`: by
  // steps, perhaps.
  void Pop(NaiveSequence* sequence, int32_t num_tokens, bool seen);
  // Of a full page.
  void Write(const NaiveSequence& sequence, int32_t page);
  // What the engine has in its blocks becomes what the sequence expects.
  void FindRows(NaiveSequence* sequence);
  void CheckRows(SequenceSlot slot) const;
  // Drops what the cache has of lost blocks and can find only through them.
  // Returns the entries after which nothing can be found.
  std::set<uint64_t> LoseEntries(const std::set<BlockId>& lost);
  // The blocks of all groups that the last position is in, if positions after
  // it are as well.
  std::vector<BlockId> PartBlocks(const NaiveSequence& sequence) const;
  // Whether others than the leavers hold it, or will have rows there that are
  // not among its own.
  bool IsShared(SequenceSlot slot, BlockId part,
                std::span<const TokenDemand> leavers) const;
  // The block of a page; null: it has none.
  BlockId BlockAt(const NaiveSequence& sequence, int32_t group,
                  int32_t page) const;
  // Returns the blocks of all groups: of tables, regions and orders.
  static std::vector<BlockId> Held(const NaiveSequence& sequence);
  int32_t num_groups() const {
    return 1 + static_cast<int32_t>(layout_.group_windows.size());
  }
  // Whether a page has one of the last positions of so many that the next but
  // one attends to.
  bool IsInWindow(int32_t group, int32_t page, int32_t num_tokens) const;
  void CheckWindows(const BlockManager& manager, SequenceSlot slot,
                    std::span<const int32_t> holders) const;
  // Releases what has fallen out of the windows.
  void LeaveWindows(NaiveSequence* sequence);
  // Offers a page's window blocks, to be found by the entry `of`.
  void PublishWindows(const NaiveSequence& sequence, int32_t page, uint64_t of,
                      int32_t cut);
  void CacheWindow(const NaiveSequence& sequence, BlockId block, int32_t group,
                   uint64_t of);
  // What a region of `length` tokens links.
  void LinkWindows(const NaiveSequence& sequence, int32_t length,
                   Region* region);
  // The window whose region one of the cache leads to after so many tokens;
  // null: none, or it has been left behind.
  const Window* CachedWindowRegion(uint64_t id, int32_t group,
                                   int32_t num_tokens) const;
  Window LinkWindowRegion(const NaiveSequence& sequence, int32_t group);
  // What is matched starts with it.
  void OpenWindowRegion(const PrefixMatch& match, int32_t group,
                        NaiveSequence* sequence);
  bool HasWindows(const NaiveSequence& sequence) const;
  bool IsAlive(const Link& link) const;
  bool IsComplete(const Region& region) const;
  bool IsLinked(BlockId block) const;
  bool IsLinked(uint64_t region) const;
  // The block of a window group that a match has of a page; null: none.
  BlockId MatchedWindow(const PrefixMatch& match, int32_t group,
                        int32_t page) const;
  // Shortens the match until every group has its window, and adds that; false:
  // its region is not to be had.
  bool FitWindows(const std::vector<int32_t>& tokens, NaiveMatch* match) const;
  bool FitsWindows(const PrefixMatch& match, int32_t num_pages) const;
  void CountReclaimable(NaiveMatch* match) const;
  // Of a sequence, a page by its group and number; or a block of the group's
  // region, the last of which is number -1.
  using Piece = std::pair<int32_t, int32_t>;
  // What the host tier has of a sequence.
  struct Swap {
    NaiveSequence sequence;  // with its blocks, when it left
    std::map<Piece, HostBlockId> pieces;
  };
  // Those that the first num_tokens need, in order.
  std::vector<Piece> PiecesOf(const NaiveSequence& sequence,
                              int32_t num_tokens) const;
  BlockId BlockOf(const NaiveSequence& sequence, const Piece& piece) const;
  // What was written at settled positions that were not cached.
  static void ReturnValues(const NaiveSequence& from, int32_t num_cached,
                           NaiveSequence* sequence);
  // What comes back with the blocks of regions in windows.
  void ReturnWindowRegions(const NaiveSequence& from, NaiveSequence* sequence);
  static std::vector<HostBlockId> HostBlocksOf(const Swap& swap);
  void CheckHost(const BlockManager& manager) const;
  // Copies rows to or from the host tier.
  void CopyOut(const BlockTransfer& transfer);
  void CopyIn(const BlockTransfer& transfer);
  // The region on the blocks that it comes back to.
  void MoveRegion(const NaiveSequence& from, std::span<const BlockId> blocks,
                  NaiveSequence* sequence);

  // Sequences that hold each block, and planned copies from it.
  std::vector<int32_t> Holders() const;
  // An entry of the cache: a block, or a region by id.
  using EntryName = std::pair<BlockId, uint64_t>;
  std::vector<EntryName> Entries() const;
  // The block that tells whether the entry is in use.
  BlockId FirstOf(const EntryName& entry) const;
  Wished& At(const EntryName& entry);
  // A sequence starts with the entry.
  void Use(const EntryName& entry);
  // A new region stands for this entry, which nobody uses or has found.
  void Supersede(const EntryName& entry);
  void Drop(const EntryName& entry);
  // Nothing leads to an entry of a window group any more.
  void DropOrphan(const EntryName& entry);
  // Entries that nobody uses and no step can touch, in the order in which they
  // are reclaimed.
  std::vector<EntryName> Reclaimable() const;
  void Publish(NaiveSequence* sequence);
  // What is wished for any of positions [begin, end), or for all of [0, cut).
  void ApplyWishes(const NaiveSequence& sequence, const EntryName& entry,
                   int32_t begin, int32_t end, int32_t cut = 0);
  void Uncache(BlockId block);
  // A sequence lets go of `block`, which it has taken out of its table.
  void Released(BlockId block);
  std::vector<int32_t> Prefix(const std::vector<int32_t>& tokens,
                              int32_t num_blocks) const;

  const ModelLayout layout_;
  const BookRules rules_;
  const bool caching_;
  const int32_t num_host_blocks_;
  NaiveTally* const tally_;
  std::map<SequenceSlot, NaiveSequence> sequences_;
  std::map<BlockId, Entry> cached_;
  std::map<Content, BlockId> by_content_;
  std::map<uint64_t, Region> regions_;
  uint64_t next_entry_ = 2;
  // What the engine has written: full blocks of sequences without a region.
  struct Written {
    std::vector<int32_t> prefix;
    std::string context;  // what they were computed over: nothing, or a region
    int32_t group = 0;
    friend bool operator==(const Written&, const Written&) = default;
  };
  std::map<BlockId, Written> written_;
  // What the engine has in its arena.
  std::map<std::pair<BlockId, int32_t>, uint64_t> rows_;
  // Of the step being planned: sources are held until it is dispatched.
  std::vector<CopyOnWrite> copies_;
  // Who may write to a block without looking.
  std::map<BlockId, SequenceSlot> writers_;
  std::map<SwapId, Swap> swaps_;
  std::vector<SwapId> leaving_swaps_;              // read by the next step
  std::map<HostBlockId, uint64_t> host_released_;  // newest step then
  std::map<std::pair<HostBlockId, int32_t>, uint64_t> host_rows_;
  uint64_t next_lineage_ = 1;
  std::map<BlockId, uint64_t> left_;  // order of the last release
  uint64_t next_left_ = 1;
  std::map<EntryName, uint64_t> line_;  // of the reclaimable entries
  uint64_t next_in_line_ = 1;
  int32_t num_freed_ = 0;  // blocks of the line, since Line
  uint64_t next_wish_ = 1;
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();  // as yet unknown
  uint64_t dispatched_ = 0;
  uint64_t acknowledged_ = 0;
  std::vector<uint64_t> touched_;   // newest step that saw the block in a table
  std::vector<uint64_t> released_;  // newest step when the last holder left
  // The cache was emptied while steps were in flight: blocks may wait for a
  // later step than theirs, never for an earlier one.
  bool fences_are_bounds_ = false;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_MODEL_H_
