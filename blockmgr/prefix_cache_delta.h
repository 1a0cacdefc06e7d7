// PrefixCacheDelta: the changes of the prefix cache that a reader does not know
// yet. A router, for example, reads them to send each request where its prefix
// is cached.
//
// A reader stores scopes, blocks and regions by serial. It applies a delta in
// this order: if `reset` is set, it forgets everything; it erases what is
// removed; it stores what is new. Serials are never reused. A delta may remove
// an item that the reader does not know, and may repeat an item that the reader
// knows. After a delta that is `current`, the reader has exactly the entries of
// the cache.
//
// The cache stores nothing per reader, because the reader passes its position.
// A reader without a position, or with one that is older than the log, is told
// to forget everything. Then it is told of all entries, one after the other,
// and the log tells it of changes to entries that it has been told of. So a
// reader cannot hold up the cache, cannot miss a change unnoticed, and no
// snapshot is stored.
#ifndef BLOCKMGR_PREFIX_CACHE_DELTA_H_
#define BLOCKMGR_PREFIX_CACHE_DELTA_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/prefix_cache_log.h"
#include "blockmgr/region_content.h"

namespace blockmgr {

// PrefixCachePosition says how much of a cache a reader knows: all changes
// before `change` to entries below `entry`. By default the reader knows
// nothing.
struct PrefixCachePosition {
  static constexpr int32_t kAllEntries = std::numeric_limits<int32_t>::max();

  uint64_t change = std::numeric_limits<uint64_t>::max();
  int32_t entry = 0;

  friend bool operator==(const PrefixCachePosition&,
                         const PrefixCachePosition&) = default;
};

// Plain data. Any thread may read it, because regions share immutable content.
struct PrefixCacheDelta {
  struct Block {
    EntrySerial serial = kNoSerial;
    // The serial of the block, region or scope before this block. If the cache
    // does not have that item, this block is only used as the tail of a region.
    EntrySerial parent = kNoSerial;
    std::string media = {};  // encoded, see DecodeMedia
  };
  // A region stands for [0, length - page_size) of its content. Together with
  // the block `tail` it stands for [0, length).
  struct Region {
    EntrySerial serial = kNoSerial;
    EntrySerial scope = kNoSerial;
    EntrySerial tail = kNoSerial;
    int32_t length = 0;  // tokens
    std::string plan = {};
    // The content of [0, length).
    std::shared_ptr<const RegionContent> content = {};
  };

  bool reset = false;    // the reader must forget everything first
  bool current = false;  // nothing is left to be read
  std::vector<EntrySerial> removed;
  // The encoded names of new scopes by serial, see DecodeRoot.
  absl::flat_hash_map<EntrySerial, std::string> scopes;
  std::vector<Block> blocks;
  std::vector<int32_t> tokens;  // [blocks, page_size]
  std::vector<Region> regions;

  std::span<const int32_t> TokensOf(size_t block) const {
    const size_t page_size = tokens.size() / blocks.size();
    return std::span(tokens).subspan(block * page_size, page_size);
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_CACHE_DELTA_H_
