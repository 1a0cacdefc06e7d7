// PrefixCacheDelta: what a reader of the prefix cache has to learn, for routers
// that send a request where its prefix is cached.
//
// A reader keeps what it was told by serial: scopes, blocks, regions. To apply
// a delta is to forget all if it says so, to erase what is removed, and to
// store what is new; serials are never reused, so what is not known may be
// removed, and what is known told again. Whenever a delta is `current`, the
// reader has exactly the entries that the cache had when it was read.
//
// The cache keeps nothing for a reader, who brings its position along. Who
// knows nothing, or is so far behind that the log no longer has what it missed,
// is told to forget all (`reset`) and walks the entries; changes to what it has
// walked past reach it by the log meanwhile. So no reader can hold up the
// cache, none can miss a change without being told, and there is no snapshot to
// be taken or kept.
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

// How much of one cache a reader knows: of the entries below `entry`, all that
// happened before `change`. By default, nothing.
struct PrefixCachePosition {
  static constexpr int32_t kAllEntries = std::numeric_limits<int32_t>::max();

  uint64_t change = std::numeric_limits<uint64_t>::max();
  int32_t entry = 0;

  friend bool operator==(const PrefixCachePosition&,
                         const PrefixCachePosition&) = default;
};

// Plain data, to be read by any thread: regions share immutable content.
struct PrefixCacheDelta {
  struct Block {
    EntrySerial serial = kNoSerial;
    // What it comes after: a block, a region or a scope. One that the cache
    // does not have: the block is of use as the tail of a region only.
    EntrySerial parent = kNoSerial;
    std::string media = {};  // encoded, see DecodeMedia
  };
  // Stands for [0, length - page_size) of its content, and with the block
  // `tail` for [0, length).
  struct Region {
    EntrySerial serial = kNoSerial;
    EntrySerial scope = kNoSerial;
    EntrySerial tail = kNoSerial;
    int32_t length = 0;  // tokens
    std::string plan = {};
    std::shared_ptr<const RegionContent> content = {};  // of [0, length)
  };

  bool reset = false;    // forget all that was told before this
  bool current = false;  // nothing is left to be told
  std::vector<EntrySerial> removed;
  // Of what follows a scope, its encoded name, see DecodeRoot.
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
