// PrefixCache finds full blocks and regions by content, so that later sequences
// can reuse them.
//
// The index maps the chained key of a full block to the block, and the key of a
// compressed prefix to its region. The cache is a holder of every block that it
// indexes: SequencePublisher takes one reference per block in the pool with the
// entry, and CachedPool drops it with the entry. An entry that only the cache
// holds, and that no step in flight may touch, is reclaimable. When memory is
// short, CachedPool reclaims (vLLM: evicts) entries in the order of
// ReclaimOrder. "Evict" means something else here: to drop K and V rows of a
// sequence in use. An entry is known by a number:
//
//   0 .. num_blocks - 1          the entry of the block with this id
//   num_blocks .. entry_limit()  the entries of regions
//
// Hits are verified. An entry remembers its tokens, its media and the serial
// number of the entry before it. Serial numbers are never reused. The first
// block of a chain follows a root (tenant, adapter, salt) that is compared in
// full. So a hit means equal content from position 0 on, even if hashes
// collide. Entries with equal keys and different contents are kept side by
// side.
//
// A region was made when `length` = cut + page_size tokens of a sequence were
// computed. It is found together with the block behind it, its tail block,
// which was computed before the compression:
//
//   position  0            cut            length
//             |   region   | tail block   | blocks computed over the region
//             |<- equal tokens, media and compressions  ->|
//
// MatchPart finds a block whose first rows agree with the sequence, though not
// all of its rows do. The sequence can copy the first rows.
//
// Content is found by the blocks and regions of one layer group, the *index
// group* (GroupCache). The blocks and regions of the other groups, the *linked
// groups*, have entries without a key. A linked block is found through the
// block of the index group with the same tokens. So the linked block is
// verified with that block and removed with it, but can be reclaimed alone.
// Before its cut, a region has no blocks through which linked blocks could be
// found. Instead, the region links what the other groups held at its length.
//
// Readers learn in deltas what is cached, see prefix_cache_delta.h.
//
// Cost: Match is O(blocks matched). Calls for a region are O(length). Other
// calls are O(1) unless they say more. Threads: core thread.
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
#include <absl/container/inlined_vector.h>
#include <absl/container/node_hash_map.h>
#include <absl/functional/function_ref.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/group_cache.h"
#include "blockmgr/prefix_cache_delta.h"
#include "blockmgr/prefix_cache_log.h"
#include "blockmgr/reclaim_order.h"
#include "blockmgr/region_content.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

// Says how a prefix was compressed.
struct RegionName {
  std::string plan;  // policy and target, as canonical text
  // All compressions up to this one, encoded. The encoding of a history is a
  // prefix of the encodings of its continuations, and of no other history.
  std::string history;
  int32_t length = 0;  // tokens computed at the last compression
};

// Says which regions may stand for the beginning of a sequence.
struct RegionQuery {
  absl::string_view plan = {};
  // The history of a region must be a prefix of this, unless any_history.
  absl::string_view history = {};
  bool any_history = false;
  // Returns the most tokens that a match may cover which begins with a region
  // made at `length`. A result below `length` rules the region out.
  absl::FunctionRef<int32_t(int32_t length)> max_tokens_over;
  // Regions with a larger length are ignored.
  int32_t max_length = std::numeric_limits<int32_t>::max();
};

// The region of one layer group in a CachedRegion.
struct CachedGroup : GroupRegion {
  // The serial of the region's entry. kNoSerial if there are no blocks.
  EntrySerial serial = kNoSerial;
  // The number of linked blocks of the groups up to this one.
  int32_t linked_end = 0;
};

// LinkedMemory is the memory that the linked groups hold when a region is
// published.
struct LinkedMemory {
  std::vector<CachedGroup> groups;
  // For each linked group in turn: the blocks of the span behind its region.
  std::vector<BlockId> blocks;
};

// A region in the cache, and everything that a hit is verified against.
// Immutable.
struct CachedRegion {
  // The regions of all layer groups at length(), the index group's first. A
  // block or a region of a linked group is gone if the serial of its entry is
  // no longer the one kept here. A region that was dropped and published again
  // has a new serial, and belongs only to the regions that were published with
  // it since. The linked block of the tail block's page is used only if the
  // tail block links none.
  absl::InlinedVector<CachedGroup, 1> groups;
  std::vector<BlockId> linked_blocks = {};       // described at LinkedMemory
  std::vector<EntrySerial> linked_serials = {};  // [linked_blocks]
  // Whether this is the region of a linked group. Nothing else has a meaning
  // then but groups[0], its record.
  bool is_linked = false;
  std::string plan;                              // RegionName::plan
  std::shared_ptr<const RegionContent> content;  // the content of [0, length())
  EntrySerial root = kNoSerial;
  BlockId tail = kNullBlock;  // the block of positions [cut, length())
  EntrySerial tail_serial = kNoSerial;

  const RegionRecord& record() const { return *groups.front().region; }
  int32_t length() const { return groups.front().region_length; }
};

class PrefixCache {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kMaxRegionLooks = 1024;
  static constexpr int32_t kMaxPartLooks = 16;

  PrefixCache(int32_t num_blocks, int32_t page_size, int32_t num_groups = 1);

  int32_t num_groups() const { return num_groups_; }
  // Counts the references that the cache holds: one per entry and block.
  int32_t num_blocks_held() const { return num_blocks_held_; }
  // Counts the entries that were removed since creation, for any reason.
  uint64_t num_removed() const { return num_removed_; }
  // Counts the blocks of reclaimable entries.
  int32_t num_reclaimable() const { return num_reclaimable_; }
  bool Contains(BlockId block) const {
    return entries_[Index(block)].serial != kNoSerial;
  }
  bool IsReclaimable(int32_t entry) const { return order_.IsListed(entry); }
  EntrySerial serial(int32_t entry) const { return entries_[entry].serial; }
  const BlockKey& key(int32_t entry) const { return entries_[entry].key; }
  // Returns a number above all entries.
  int32_t entry_limit() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_blocks(int32_t entry) const {
    const CachedRegion* cached = region(entry);
    return cached == nullptr
               ? 1
               : static_cast<int32_t>(cached->record().blocks.size());
  }
  // Returns null for the entry of a block.
  const CachedRegion* region(int32_t entry) const {
    return entry < num_blocks_ ? nullptr : regions_[entry - num_blocks_].get();
  }
  // Returns the entry of a region, or kNone.
  int32_t FindRegion(RegionId id) const;

  // Adds a user to a root, and returns the serial of the root. First blocks of
  // chains have this serial as parent. A root lives until all of its users and
  // all of its entries are gone.
  EntrySerial AcquireRoot(absl::string_view root);
  // Adds a user to a root that has users already.
  void AddRootUser(EntrySerial root);
  void ReleaseRoot(EntrySerial root);

  // Returns the block of a linked group that has the same tokens as the block
  // of `entry`. Returns kNullBlock if none is cached.
  BlockId LinkedBlock(int32_t entry, int32_t group) const {
    return linked_blocks_[LinkIndex(entry, group)];
  }
  // Returns the block of a page that a region links in a linked group, or
  // kNullBlock if it is gone. REQUIRES: the page is one that the region links.
  BlockId LinkedBlock(const CachedRegion& cached, int32_t group,
                      int32_t page) const {
    const int32_t num_behind = cached.length() / page_size_ - page;
    return LinkedBlock(cached, cached.groups[group].linked_end - num_behind);
  }
  // Returns the i-th block that a region links, or kNullBlock if it is gone.
  BlockId LinkedBlock(const CachedRegion& cached, size_t i) const {
    const BlockId block = cached.linked_blocks[i];
    return serial(Index(block)) == cached.linked_serials[i] ? block
                                                            : kNullBlock;
  }
  // Returns the entry of the region that a cached region has in a layer group.
  // Returns kNone if it is gone, if there is none, or if it has no blocks.
  int32_t RegionOf(const CachedRegion& cached, int32_t group) const {
    const CachedGroup& own = cached.groups[group];
    if (own.num_region_blocks() == 0) return kNone;
    const int32_t entry = FindRegion(own.region->id);
    return entry != kNone && serial(entry) == own.serial ? entry : kNone;
  }
  // Returns whether no region is gone that a cached region has in a group.
  bool HasRegionOf(const CachedRegion& cached, int32_t group) const {
    return cached.groups[group].num_region_blocks() == 0 ||
           RegionOf(cached, group) != kNone;
  }

  // Appends to `blocks` the longest verified run of blocks for the first
  // `num_blocks` blocks of `tokens`. REQUIRES: `chain` names that many blocks
  // of `tokens`.
  void Match(const BlockChain& chain, size_t num_blocks,
             std::span<const int32_t> tokens,
             std::vector<BlockId>* blocks) const;
  // Returns the longest region that may stand for the beginning of `tokens`, or
  // kNone. Only regions of the root and the plan are tried, the longest first,
  // at most kMaxRegionLooks lengths. Adds to `num_looks` the number of lengths
  // tried and of pages compared.
  int32_t MatchRegion(const BlockChain& chain, std::span<const int32_t> tokens,
                      const RegionQuery& query, int64_t* num_looks) const;
  // Appends to `blocks` the tail block of a matched region and the longest
  // verified run of blocks behind it, up to max_tokens.
  void MatchOver(int32_t region, const BlockChain& chain,
                 std::span<const int32_t> tokens, int32_t max_tokens,
                 std::vector<BlockId>* blocks) const;

  // Finds the block with the longest common beginning with tokens [begin,
  // max_tokens), at most page_size - 1 tokens. The block must follow the entry
  // `before`, or the root of the chain if `before` is kNone. Only the
  // kMaxPartLooks youngest blocks with the same first token are compared. Sets
  // `block` and returns the number of common tokens. Returns 0 if there is no
  // such block, or if the tokens have media.
  int32_t MatchPart(int32_t before, const BlockChain& chain,
                    std::span<const int32_t> tokens, int32_t begin,
                    int32_t max_tokens, BlockId* block) const;

  // Publishes the block with positions [begin, begin + page_size) after
  // `parent`. `tokens` are the sequence's from position 0 on. Returns the entry
  // that the next block follows. If an equal block is in the cache already, the
  // entry of that block is returned, `block` is not indexed, and `inserted` is
  // false. REQUIRES: `block` is not in the cache.
  int32_t Insert(BlockId block, const BlockKey& key, const BlockChain& chain,
                 EntrySerial parent, std::span<const int32_t> tokens,
                 int32_t begin, bool* inserted);
  // Publishes a block whose predecessors are not in the cache. It can only be
  // found as the tail block of a region.
  void InsertTail(BlockId block, const BlockKey& key, const BlockChain& chain,
                  std::span<const int32_t> tokens, int32_t begin);
  // Returns the entry of a region with this name and content, made by a
  // sequence under `root`. Its tail block and all that it links must be in the
  // cache. Returns kNone if there is no such region.
  int32_t FindRegion(const RegionName& name, const BlockChain& chain,
                     EntrySerial root, std::span<const int32_t> tokens) const;
  // Publishes a region that stands for the first name.length - page_size of
  // `tokens`, and returns its entry. `tail` is the block behind the region.
  // `before` is the content of the region that the sequence started from, or
  // null. If the content of the new region begins with `before`, the new
  // content shares `before`.
  // REQUIRES: `tail` and everything in `linked` are in the cache (InsertLinked,
  // InsertLinkedRegion); FindRegion finds no region with this name and content.
  int32_t InsertRegion(std::shared_ptr<const RegionRecord> record,
                       const RegionName& name, const BlockChain& chain,
                       EntrySerial root, std::span<const int32_t> tokens,
                       BlockId tail,
                       std::shared_ptr<const RegionContent> before = nullptr,
                       LinkedMemory linked = {});
  // Publishes a block of a linked group with the same tokens as the block of
  // `entry`. If `entry` is kNone, only a region will link the block. REQUIRES:
  // `block` is not in the cache; `entry` has no block of this group yet.
  void InsertLinked(int32_t entry, int32_t group, BlockId block);
  // Publishes the region of a linked group, to be linked by a region of the
  // index group. Returns its entry. REQUIRES: the region has blocks, and is not
  // in the cache.
  int32_t InsertLinkedRegion(std::shared_ptr<const RegionRecord> record);
  // Removes all links from an entry that is about to be removed. Returns the
  // linked blocks and regions that nothing leads to any more, which the caller
  // must remove, too. Valid until the next call for an entry with links.
  std::span<const int32_t> Unlink(int32_t entry);
  // Returns the entries that must be removed because the content of some blocks
  // is lost: entries with a lost block, and entries that are found only through
  // such entries. A block behind a lost block stays if it is the tail block of
  // a sound region. Adds to `gone` every serial after which nothing can be
  // found any more, the serials of the returned entries included. O(entries log
  // entries).
  std::vector<int32_t> FindLost(const absl::flat_hash_set<BlockId>& lost,
                                absl::flat_hash_set<EntrySerial>* gone) const;
  // Forgets the entry. REQUIRES: it is in the cache and not reclaimable; Unlink
  // was called for it.
  void Remove(int32_t entry);

  // Returns the next changes for a reader at `position`, and moves `position`
  // on. The delta has about max_blocks blocks. A region counts as the blocks
  // that it stands for. The change that exceeds the limit is the last of the
  // delta. Linked groups are not reported. O(max_blocks).
  PrefixCacheDelta Read(PrefixCachePosition* position,
                        int32_t max_blocks) const;
  // Returns a number that grows with every change that Read reports.
  uint64_t num_changes() const { return log_.end(); }

  // See ReclaimOrder.
  void SetRetention(int32_t entry, Retention retention) {
    order_.SetRetention(entry, retention);
  }
  void SetSuperseded(int32_t entry, bool superseded) {
    order_.SetSuperseded(entry, superseded);
  }
  void SetTime(int64_t now_ms) { order_.SetTime(now_ms); }
  // AddReclaimable makes an entry reclaimable whose blocks only the cache
  // holds. RemoveReclaimable must be called before the blocks get another
  // holder, and before the entry is removed.
  void AddReclaimable(int32_t entry) {
    BM_CHECK(serial(entry) != kNoSerial);
    order_.List(entry);
    num_reclaimable_ += num_blocks(entry);
  }
  void RemoveReclaimable(int32_t entry) {
    order_.Unlist(entry);
    num_reclaimable_ -= num_blocks(entry);
  }
  // Returns the entry that is reclaimed next. REQUIRES: one is reclaimable.
  int32_t next_to_reclaim() const { return order_.next(); }

  // Returns the bytes of memory of the cache and its regions. Only regions,
  // media and retention durations change the result. Leaves out the contents
  // and records that the two sets have, and adds the other contents and
  // records to the sets. O(regions + media).
  int64_t metadata_bytes(
      absl::flat_hash_set<const RegionContent*>* contents,
      absl::flat_hash_set<const RegionRecord*>* records) const;

  // Returns a hash of the entries and their order. O(entries), for tests.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  using KeyIndex = absl::flat_hash_map<BlockKey, int32_t>;
  // The parent and the first token of a block.
  using StartKey = std::pair<EntrySerial, int32_t>;
  struct Entry {
    BlockKey key;
    EntrySerial serial = kNoSerial;
    EntrySerial parent = kNoSerial;
    int32_t next_same_key = kNone;
    // Only for blocks: the neighbours among the entries of one StartKey.
    int32_t older_same_start = kNone;
    int32_t younger_same_start = kNone;
    bool follows_root = false;  // `parent` is a root, and counts this entry
    bool has_media = false;     // media_ has an item for this block
  };
  // The links to the entry of a linked block.
  struct Links {
    // The group of the linked block. 0 if the entry is no linked block.
    int32_t group = 0;
    int32_t entry = kNone;  // the index group's block with the same tokens
    int32_t num_regions = 0;
  };
  struct Root {
    EntrySerial serial = kNoSerial;
    int32_t num_users = 0;  // sequences, and entries whose parent it is
    // An entry had this root as its parent, so readers know the root.
    bool has_led = false;
    // The number of regions of each length, by plan.
    absl::node_hash_map<std::string, std::map<int32_t, int32_t>> plans;
  };
  std::span<const int32_t> TokensOf(int32_t block) const {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * page_size_,
                                      page_size_);
  }
  KeyIndex* IndexOf(int32_t entry) {
    return entry < num_blocks_ ? &index_ : &region_index_;
  }
  // Adds the entry of a block and stores its content.
  void AddBlock(BlockId block, const BlockKey& key, EntrySerial parent,
                std::span<const int32_t> tokens, absl::string_view media);
  // Returns where linked_blocks_ has the block that an entry links in a group.
  size_t LinkIndex(int32_t entry, int32_t group) const {
    return static_cast<size_t>(entry) * (num_groups_ - 1) + group - 1;
  }
  bool IsLinked(int32_t entry) const {
    if (entry >= num_blocks_) return region(entry)->is_linked;
    return num_groups_ > 1 && links_[entry].group > 0;
  }
  void RemoveLinkedBlock(int32_t block);
  // Makes a region link `linked`, and counts the links.
  void Link(LinkedMemory linked, CachedRegion* cached);
  // Returns an entry for a region. The caller gives it a key and a serial.
  int32_t AddRegion(std::unique_ptr<const CachedRegion> cached);
  void RemoveRegion(int32_t entry);
  // Returns whether everything that the region links is in the cache.
  bool HasLinked(const CachedRegion& cached) const;
  void CheckLinks() const;
  // Adds the entry to the delta, unless it belongs to a linked group. Returns
  // the number of blocks that a region stands for, and 0 for other entries.
  int32_t Tell(int32_t entry, PrefixCacheDelta* delta) const;
  // Puts the entry into the index and gives it a serial.
  void Add(int32_t entry, const BlockKey& key, EntrySerial parent);
  void RemoveFromIndex(int32_t entry);
  StartKey StartKeyOf(int32_t block) const {
    return {entries_[block].parent, TokensOf(block).front()};
  }
  void AddStart(int32_t block);
  void RemoveStart(int32_t block);
  // Audits a block's start. Returns whether the block is its youngest.
  bool CheckStart(int32_t block) const;
  // Counts one region less of this plan and length.
  void ForgetLength(const CachedRegion& cached);
  // Returns the block with the content of positions [begin, begin + page_size),
  // or kNone.
  int32_t Find(const BlockKey& key, EntrySerial parent, const BlockChain& chain,
               std::span<const int32_t> tokens, int32_t begin) const;
  // Returns the region with this content, or kNone. Its history must be equal
  // to `history` (kEqual), be a prefix of it (kPrefix), or may be any (kAny).
  enum class Histories : uint8_t { kEqual, kPrefix, kAny };
  int32_t FindRegion(const BlockChain& chain, EntrySerial root,
                     std::span<const int32_t> tokens, absl::string_view plan,
                     absl::string_view history, Histories histories) const;

  const int32_t page_size_;
  const int32_t num_blocks_;
  const int32_t num_groups_;
  // The linked blocks of each block's entry, [num_blocks, num_groups - 1].
  std::vector<BlockId> linked_blocks_;
  std::vector<Links> links_;                       // [num_blocks], or empty
  std::vector<int32_t> orphans_;                   // result of the last Unlink
  std::vector<Entry> entries_;                     // blocks, then regions
  ReclaimOrder order_;                             // the order of the entries
  std::vector<int32_t> tokens_;                    // [num_blocks, page_size]
  KeyIndex index_;                                 // first block of each key
  absl::flat_hash_map<StartKey, int32_t> starts_;  // youngest of each start
  absl::flat_hash_map<int32_t, std::string> media_;  // encoded, by block
  absl::node_hash_map<std::string, Root> roots_;
  absl::flat_hash_map<EntrySerial, const std::string*> root_names_;
  std::vector<std::unique_ptr<const CachedRegion>> regions_;
  std::vector<int32_t> free_regions_;  // entries without a region
  std::vector<int32_t> num_links_;     // [regions_], links to linked regions
  KeyIndex region_index_;              // first region of each key
  absl::flat_hash_map<RegionId, int32_t> region_entries_;
  // The log has num_blocks changes. To read more changes would take as long as
  // to read all entries.
  PrefixCacheLog log_;
  EntrySerial next_serial_ = kNoSerial + 1;
  int32_t num_blocks_held_ = 0;
  uint64_t num_removed_ = 0;
  int32_t num_reclaimable_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_CACHE_H_
