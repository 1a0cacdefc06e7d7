// PrefixCache finds full blocks by content, for reuse by later sequences.
//
// It maps the chained key of a full block to the block that holds it. What it
// indexes it also holds (one reference in the pool, taken and dropped by the
// block manager), so a block stays until it is reclaimed. A block that only the
// cache holds is reclaimable; those form a list in order of last use, oldest
// first.
//
// Hits are verified: an entry remembers its tokens and which entry came before
// it, by a serial number that is never reused, so a hit means equal tokens from
// the first position on, whatever the hash did.
//
// Cost: Match O(blocks matched); the rest O(1) (hash map, intrusive list).
// Threads: core thread.
#ifndef BLOCKMGR_PREFIX_CACHE_H_
#define BLOCKMGR_PREFIX_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"

namespace blockmgr {

// Identifies an entry for ever; kRootSerial precedes every first block.
using EntrySerial = uint64_t;
inline constexpr EntrySerial kNoSerial = 0;
inline constexpr EntrySerial kRootSerial = 1;

class PrefixCache {
 public:
  PrefixCache(int32_t num_blocks, int32_t page_size);

  int32_t num_entries() const { return static_cast<int32_t>(index_.size()); }
  int32_t num_reclaimable() const { return num_reclaimable_; }
  bool Contains(BlockId block) const {
    return entries_[Index(block)].serial != kNoSerial;
  }
  bool IsReclaimable(BlockId block) const {
    return entries_[Index(block)].listed;
  }
  EntrySerial serial(BlockId block) const {
    return entries_[Index(block)].serial;
  }

  // The longest verified chain of blocks for `tokens`, whose full blocks have
  // the given keys. At most keys.size() blocks. Appends to `blocks`.
  void Match(std::span<const BlockKey> keys, std::span<const int32_t> tokens,
             std::vector<BlockId>* blocks) const;

  // Publishes a full block after `parent`. Returns the serial that its
  // successor must name as parent: the new entry's, or that of an equal entry
  // published before (then `block` is not indexed), or kNoSerial when another
  // content has this key (then the chain ends here). `inserted` tells whether
  // the cache now holds `block`. REQUIRES: `block` is not in the cache.
  EntrySerial Insert(BlockId block, const BlockKey& key, EntrySerial parent,
                     std::span<const int32_t> tokens, bool* inserted);

  // The block's only holder is the cache, or no longer so.
  void AddReclaimable(BlockId block);
  void RemoveReclaimable(BlockId block);
  // The least recently used reclaimable block. REQUIRES: there is one.
  BlockId oldest() const { return BlockId{head_}; }

  // Forgets the entry. REQUIRES: it is in the cache, and not reclaimable.
  void Remove(BlockId block);

  // Entries and the order of the reclaimable list. O(num_blocks), for tests.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    BlockKey key;
    EntrySerial serial = kNoSerial;
    EntrySerial parent = kNoSerial;
    int32_t previous = kNone;  // in the reclaimable list
    int32_t next = kNone;
    bool listed = false;
  };
  std::span<const int32_t> TokensOf(BlockId block) const {
    return std::span(tokens_).subspan(
        static_cast<size_t>(Index(block)) * page_size_, page_size_);
  }

  const int32_t page_size_;
  std::vector<Entry> entries_;   // by block
  std::vector<int32_t> tokens_;  // [num_blocks, page_size]
  absl::flat_hash_map<BlockKey, BlockId> index_;
  EntrySerial next_serial_ = kRootSerial + 1;
  int32_t head_ = kNone;  // oldest
  int32_t tail_ = kNone;  // newest
  int32_t num_reclaimable_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_CACHE_H_
