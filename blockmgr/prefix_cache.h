// PrefixCache finds full blocks, and regions, by content, for reuse by later
// sequences.
//
// It maps the chained key of a full block to the block that holds it, and the
// key of a compressed prefix to its region. What it indexes it also holds (one
// reference in the pool to each block, taken and dropped by the block manager),
// so it stays until it is reclaimed. An entry that only the cache holds is
// reclaimable, in the order of ReclaimOrder. An entry is known by a number:
// that of its block, or one above all blocks for a region.
//
// Hits are verified: an entry remembers its tokens, its media and which entry
// came before it, by a serial number that is never reused; the first block of
// a chain comes after a root (tenant, adapter, salt) that is compared in full.
// So a hit means equal content from the first position on, whatever the hash
// did; contents with equal keys live side by side.
//
// A region stands for the tokens [0, cut) of a sequence that was compressed
// when `length` = cut + page_size tokens were computed; the page between is a
// block of its own, computed before the compression, and found with the region.
// Only the same tokens [0, length), compressed in the same way, find it.
//
// Of a block whose first tokens are those of a sequence, and whose predecessors
// are its own, the first rows can be copied: MatchPart finds one.
//
// In a model with window groups (ModelLayout) the blocks that have the same
// tokens in those groups are entries of their own, that are found through the
// block of group 0, and go with it: so they need no keys, and are as verified.
// They can be reclaimed alone, as those are that nobody's window has any more.
// A region links what is before its length in every window: it stands for
// blocks that are not there. If the sequence was evicted from in a window, that
// is a region, too, an entry of its own likewise, and the blocks behind it.
//
// Whoever wants to know what is cached reads it in deltas, see
// prefix_cache_delta.h.
//
// Cost: Match O(blocks matched); the rest O(1), O(length) for a region.
// Threads: core thread.
#ifndef BLOCKMGR_PREFIX_CACHE_H_
#define BLOCKMGR_PREFIX_CACHE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/container/node_hash_map.h>
#include <absl/functional/function_ref.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/prefix_cache_delta.h"
#include "blockmgr/prefix_cache_log.h"
#include "blockmgr/reclaim_order.h"
#include "blockmgr/region_content.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// How a prefix was compressed.
struct RegionName {
  std::string plan;  // policy and target, canonical: sharers agree on it
  // All compressions up to this one, encoded so that a history is a prefix of
  // its continuations and of nothing else.
  std::string history;
  int32_t length = 0;  // tokens computed when it happened
};

// Which regions may stand for the beginning of a sequence.
struct RegionQuery {
  absl::string_view plan = {};
  // The history of a region must be a prefix of this; any, if any_history.
  absl::string_view history = {};
  bool any_history = false;
  // Tokens that may be covered by a region made at this length and what was
  // computed over it, as far as the request allows more than that length.
  absl::FunctionRef<int32_t(int32_t length)> max_tokens_over;
  // Regions that were made later do not matter.
  int32_t max_length = std::numeric_limits<int32_t>::max();
};

// What the window groups have of a sequence when its region is published.
struct RegionWindows {
  // Of every window group: its region, if that is in the window.
  std::vector<GroupRegion> regions;
  // Of each in turn, the blocks behind its region, or in the window.
  std::vector<BlockId> blocks;
};

// A region in the cache, and all that a hit is verified against. Immutable.
struct CachedRegion {
  std::shared_ptr<const RegionRecord> record;
  // Of a window group: found through others, and the rest means nothing.
  bool in_window = false;
  std::string plan;                              // as in RegionName
  int32_t length = 0;                            // likewise
  std::shared_ptr<const RegionContent> content;  // of [0, length)
  EntrySerial root = kNoSerial;
  BlockId tail = kNullBlock;  // with positions [cut, length)
  EntrySerial tail_serial = kNoSerial;
  // What was in the windows at `length`. A block is gone if it has another
  // serial, a region if it is not in the cache. The block of the tail's page is
  // of use where the tail leads to none.
  RegionWindows windows = {};
  std::vector<EntrySerial> window_serials = {};  // of its blocks

  // REQUIRES: the model has this group, from 1 on.
  const GroupRegion& window(int32_t group) const {
    return windows.regions[static_cast<size_t>(group - 1)];
  }
};

class PrefixCache {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kMaxRegionLooks = 1024;
  static constexpr int32_t kMaxPartLooks = 16;

  PrefixCache(int32_t num_blocks, int32_t page_size,
              int32_t num_window_groups = 0);

  int32_t num_window_groups() const { return num_window_groups_; }
  // Blocks that the cache holds, once for each entry they belong to.
  int32_t num_blocks_held() const { return num_blocks_held_; }
  // Entries since creation.
  uint64_t num_removed() const { return num_removed_; }
  // Of those, blocks of reclaimable entries.
  int32_t num_reclaimable() const { return num_reclaimable_; }
  bool Contains(BlockId block) const {
    return entries_[Index(block)].serial != kNoSerial;
  }
  bool IsReclaimable(int32_t entry) const { return order_.IsListed(entry); }
  EntrySerial serial(int32_t entry) const { return entries_[entry].serial; }
  const BlockKey& key(int32_t entry) const { return entries_[entry].key; }
  // Entries are below this.
  int32_t entry_limit() const { return static_cast<int32_t>(entries_.size()); }
  // Blocks that an entry holds.
  int32_t num_blocks(int32_t entry) const;
  // Null for a block's entry.
  const CachedRegion* region(int32_t entry) const {
    return entry < num_blocks_ ? nullptr : regions_[entry - num_blocks_].get();
  }
  // The entry of a region, or kNone.
  int32_t FindRegion(RegionId id) const;

  // The serial that first blocks under `root` name as parent. Counted: a root
  // lives until every user has released it and its last entry is gone.
  EntrySerial AcquireRoot(absl::string_view root);
  // One more user of a root that has some.
  void AddRootUser(EntrySerial root);
  void ReleaseRoot(EntrySerial root);

  // The block of a window group (from 0) with the tokens of a block's entry;
  // kNullBlock without any.
  BlockId WindowBlock(int32_t entry, int32_t group) const {
    return window_blocks_[static_cast<size_t>(entry) * num_window_groups_ +
                          group];
  }
  // Of a region, the i-th of its window blocks; kNullBlock if it is gone.
  BlockId WindowBlockOf(const CachedRegion& cached, size_t i) const {
    const BlockId block = cached.windows.blocks[i];
    return serial(Index(block)) == cached.window_serials[i] ? block
                                                            : kNullBlock;
  }

  // Whether a region of a window group, if it is one, is there: what holds no
  // block always is.
  bool HasWindowRegion(const GroupRegion& window) const {
    return window.num_region_blocks() == 0 ||
           FindRegion(window.region->id) != kNone;
  }

  // The longest verified run of blocks for the first `num_blocks` blocks of
  // `tokens`, which `chain` names. Appends to `blocks`. REQUIRES: the chain has
  // that many keys.
  void Match(const BlockChain& chain, size_t num_blocks,
             std::span<const int32_t> tokens,
             std::vector<BlockId>* blocks) const;
  // The longest region that may stand for the beginning of `tokens` and with
  // its tail block covers no more of them than
  // the query allows; kNone without any among the kMaxRegionLooks longest
  // lengths that regions of this root and plan have. Adds to `num_looks` how
  // many it tried, and the pages compared.
  int32_t MatchRegion(const BlockChain& chain, std::span<const int32_t> tokens,
                      const RegionQuery& query, int64_t* num_looks) const;
  // The tail block of a matched region, and the longest verified run of blocks
  // after it up to max_tokens. Appends to `blocks`.
  void MatchOver(int32_t region, const BlockChain& chain,
                 std::span<const int32_t> tokens, int32_t max_tokens,
                 std::vector<BlockId>* blocks) const;

  // How many of the tokens [begin, max_tokens) some block that follows `before`
  // (an entry; kNone: the root of the chain) begins with, less than a page;
  // `block` is set to the one with most, of the kMaxPartLooks youngest with the
  // same first token. 0: none, or there is media.
  int32_t MatchPart(int32_t before, const BlockChain& chain,
                    std::span<const int32_t> tokens, int32_t begin,
                    int32_t max_tokens, BlockId* block) const;

  // Publishes the block with positions [begin, begin + page_size) of `tokens`
  // (the sequence's, from position 0) after `parent`. Returns the entry that
  // its successor comes after: the new one, or an equal one published before
  // (then `block` is not indexed). `inserted` tells whether the cache now holds
  // `block`. REQUIRES: it did not.
  int32_t Insert(BlockId block, const BlockKey& key, const BlockChain& chain,
                 EntrySerial parent, std::span<const int32_t> tokens,
                 int32_t begin, bool* inserted);
  // The same of a block whose predecessors are not in the cache: only a region
  // can have it for a tail.
  void InsertTail(BlockId block, const BlockKey& key, const BlockChain& chain,
                  std::span<const int32_t> tokens, int32_t begin);
  // The entry of a region with this name and content, of a sequence under
  // `root`, that has its tail block and its windows; kNone without any.
  int32_t FindRegion(const RegionName& name, const BlockChain& chain,
                     EntrySerial root, std::span<const int32_t> tokens) const;
  // Publishes a region that stands for the first name.length - page_size of
  // `tokens`; `tail`, the block after it, is in the cache. Returns its entry.
  // `before`: of the region that the sequence went on from, or null; shared as
  // far as it is the beginning of this one. `windows`: see CachedRegion; they
  // are in the cache, see InsertWindow and InsertWindowRegion. REQUIRES:
  // FindRegion finds none with this name and content.
  int32_t InsertRegion(std::shared_ptr<const RegionRecord> record,
                       const RegionName& name, const BlockChain& chain,
                       EntrySerial root, std::span<const int32_t> tokens,
                       BlockId tail,
                       std::shared_ptr<const RegionContent> before = nullptr,
                       RegionWindows windows = {});
  // Publishes a block of a window group (from 0) with the tokens of `entry`, a
  // block's; kNone: for a region to link. REQUIRES: it is not in the cache, nor
  // is there one of this entry and group.
  void InsertWindow(int32_t entry, int32_t group, BlockId block);
  // Publishes the region of a window group for others to link. Returns its
  // entry. REQUIRES: it has blocks, and is not in the cache.
  int32_t InsertWindowRegion(std::shared_ptr<const RegionRecord> record);
  // The window blocks and regions that only this entry leads to, which is about
  // to be removed; nothing leads to them any more. They are to be removed.
  // Valid until the next call for an entry that can lead to some.
  std::span<const int32_t> Unlink(int32_t entry);
  // The content of some blocks is lost: entries that have one of them, or can
  // be found only through such an entry, to be removed. A block that follows a
  // lost one but is also the tail block of a sound region stays; `gone` tells
  // the serials after which nothing can be found any more, its own included.
  // O(entries log entries).
  std::vector<int32_t> FindLost(const absl::flat_hash_set<BlockId>& lost,
                                absl::flat_hash_set<EntrySerial>* gone) const;
  // Forgets the entry. REQUIRES: it is in the cache, not reclaimable, and leads
  // to no window blocks (Unlink).
  void Remove(int32_t entry);

  // What a reader at `position` has to learn next, about max_blocks of it: a
  // region counts as the blocks it stands for, and ends the delta when it is
  // more. Advances the position. Windows are not told of. O(max_blocks).
  PrefixCacheDelta Read(PrefixCachePosition* position,
                        int32_t max_blocks) const;
  // Grows when there is something to read.
  uint64_t num_changes() const { return log_.end(); }

  // See ReclaimOrder.
  void SetRetention(int32_t entry, Retention retention) {
    order_.SetRetention(entry, retention);
  }
  void SetSuperseded(int32_t entry, bool superseded) {
    order_.SetSuperseded(entry, superseded);
  }
  void SetTime(int64_t now_ms) { order_.SetTime(now_ms); }
  // The only holder of the entry's blocks is the cache, or no longer so.
  void AddReclaimable(int32_t entry);
  void RemoveReclaimable(int32_t entry);
  // The reclaimable entry to go first. REQUIRES: there is one.
  int32_t next_to_reclaim() const { return order_.next(); }

  // Bytes of memory of its own, and of the regions it holds. Without regions,
  // media and durations, independent of what is cached. O(regions + media).
  // Adds what regions stand for to `counted`, and leaves out what is in it.
  int64_t metadata_bytes(
      absl::flat_hash_set<const RegionContent*>* counted) const;

  // Entries and their order. O(entries), for tests.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  using KeyIndex = absl::flat_hash_map<BlockKey, int32_t>;
  // Parent and first token of a block.
  using StartKey = std::pair<EntrySerial, int32_t>;
  struct Entry {
    BlockKey key;
    EntrySerial serial = kNoSerial;
    EntrySerial parent = kNoSerial;
    int32_t next_same_key = kNone;
    // Of a block: its neighbours among those of its StartKey.
    int32_t older_same_start = kNone;
    int32_t younger_same_start = kNone;
    bool follows_root = false;  // `parent` is a root, which counts its users
    bool has_media = false;     // of a block: then media_ has it
  };
  // What leads to a window block.
  struct WindowLinks {
    bool cached = false;    // the block is one, with an entry
    int32_t entry = kNone;  // of a block
    int32_t group = 0;      // from 0
    int32_t num_regions = 0;
  };
  struct Root {
    EntrySerial serial = kNoSerial;
    int32_t num_users = 0;  // sequences, and entries that name it as parent
    bool has_led = false;   // an entry has named it: readers know of it
    // Of each plan, how many regions have which length.
    absl::node_hash_map<std::string, std::map<int32_t, int32_t>> plans;
  };
  std::span<const int32_t> TokensOf(int32_t block) const {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * page_size_,
                                      page_size_);
  }
  KeyIndex* IndexOf(int32_t entry) {
    return entry < num_blocks_ ? &index_ : &region_index_;
  }
  // Remembers what a block holds.
  void AddBlock(BlockId block, const BlockKey& key, EntrySerial parent,
                std::span<const int32_t> tokens, absl::string_view media);
  bool IsWindow(int32_t entry) const {
    return entry < std::ssize(window_links_) && window_links_[entry].cached;
  }
  void RemoveWindow(int32_t block);
  bool IsWindowRegion(int32_t entry) const {
    return entry >= num_blocks_ && region(entry)->in_window;
  }
  // Counts what leads to them, and remembers their serials.
  void LinkWindows(const RegionWindows& windows, CachedRegion* cached);
  // An entry for a region that has neither name nor serial yet.
  int32_t AddRegion(std::unique_ptr<const CachedRegion> cached);
  void RemoveRegion(int32_t entry);
  // Whether all that the region links is there.
  bool HasWindows(const CachedRegion& cached) const;
  void CheckWindows() const;
  // Adds the entry to the delta, unless it is in a window; returns the blocks
  // that a region stands for, beyond itself.
  int32_t Tell(int32_t entry, PrefixCacheDelta* delta) const;
  // Gives the entry its place in the index and its serial.
  void Add(int32_t entry, const BlockKey& key, EntrySerial parent);
  void RemoveFromIndex(int32_t entry);
  StartKey StartKeyOf(int32_t block) const {
    return {entries_[block].parent, TokensOf(block).front()};
  }
  void AddStart(int32_t block);
  void RemoveStart(int32_t block);
  // Audits them; whether the block is the youngest of its start.
  bool CheckStart(int32_t block) const;
  // One region less of this length.
  void ForgetLength(const CachedRegion& cached);
  // The block with the content of positions [begin, begin + page_size_), or
  // kNone.
  int32_t Find(const BlockKey& key, EntrySerial parent, const BlockChain& chain,
               std::span<const int32_t> tokens, int32_t begin) const;
  // The region with this content and a history that may be: all of `history`,
  // or a prefix of it, or any; or kNone.
  enum class Histories : uint8_t { kEqual, kPrefix, kAny };
  int32_t FindRegion(const BlockChain& chain, EntrySerial root,
                     std::span<const int32_t> tokens, absl::string_view plan,
                     absl::string_view history, Histories histories) const;

  const int32_t page_size_;
  const int32_t num_blocks_;
  const int32_t num_window_groups_;
  // Of a block's entry, the blocks of the window groups: [num_blocks, groups].
  std::vector<BlockId> window_blocks_;
  std::vector<WindowLinks> window_links_;            // [num_blocks], or empty
  std::vector<int32_t> orphans_;                     // of the last Unlink
  std::vector<Entry> entries_;                       // by block, then regions
  ReclaimOrder order_;                               // of the entries
  std::vector<int32_t> tokens_;                      // [num_blocks, page_size]
  KeyIndex index_;                                   // first block of a key
  absl::flat_hash_map<StartKey, int32_t> starts_;    // youngest of a start
  absl::flat_hash_map<int32_t, std::string> media_;  // by block
  absl::node_hash_map<std::string, Root> roots_;
  absl::flat_hash_map<EntrySerial, const std::string*> root_names_;
  std::vector<std::unique_ptr<const CachedRegion>> regions_;
  std::vector<int32_t> free_regions_;  // entries without a region
  std::vector<int32_t> num_links_;     // [regions_], to those of window groups
  KeyIndex region_index_;              // first region of a key
  absl::flat_hash_map<RegionId, int32_t> region_entries_;
  // As many changes as there are blocks: to read more would take as long as to
  // walk all entries.
  PrefixCacheLog log_;
  EntrySerial next_serial_ = kNoSerial + 1;
  int32_t num_blocks_held_ = 0;
  uint64_t num_removed_ = 0;
  int32_t num_reclaimable_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_CACHE_H_
