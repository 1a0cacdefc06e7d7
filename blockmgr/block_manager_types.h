// Plain data that BlockManager takes and returns.
#ifndef BLOCKMGR_BLOCK_MANAGER_TYPES_H_
#define BLOCKMGR_BLOCK_MANAGER_TYPES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

// Says which blocks become the destinations of a region.
enum class CompactionPreference : uint8_t {
  kFreshFirst,  // copy to fresh blocks if enough are free, else in place
  kInPlace,     // the sequence's own blocks first, fresh ones for the rest
};

struct BlockManagerStats {
  int32_t num_blocks = 0;  // blocks of the pool, with the null block
  int32_t free_blocks = 0;
  int32_t cached_blocks = 0;  // blocks that only the prefix cache holds
  // Released blocks that steps in flight may still touch.
  int32_t fenced_blocks = 0;
  int32_t used_blocks = 0;        // blocks that sequences hold
  uint64_t reclaimed_blocks = 0;  // blocks reclaimed since creation
  // Entries removed from the prefix cache since creation, for any reason.
  uint64_t dropped_entries = 0;
};

// RegionPublication says how to publish a region
// (BlockManager::CommitEviction).
struct RegionPublication {
  RegionName name;
  const BlockChain* chain = nullptr;  // covers at least name.length tokens
  std::span<const int32_t> tokens;  // the sequence's tokens from position 0 on
};

struct TokenDemand {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
};

// An eviction to order: of the positions [0, cut) of one layer group.
struct EvictionDemand {
  int32_t group = 0;
  int32_t cut = 0;         // a multiple of page_size
  int64_t page_total = 0;  // the most pages that each shard may use
  // The fresh destination blocks. The other destinations are blocks that the
  // sequence already holds.
  int32_t num_fresh = 0;
  // The most pages of each shard, [num_shards]. Empty if all may use
  // page_total.
  std::span<const int64_t> shard_page_totals = {};
};

// Blocks of a sequence that are about to leave the windows.
struct FallingBlocks {
  int32_t num_own = 0;     // blocks that no other sequence holds
  int32_t num_shared = 0;  // blocks that other sequences hold, too
};

// Blocks of a sequence in window groups that no other sequence holds.
struct OwnInWindows {
  int32_t num_blocks = 0;
  int32_t num_in_regions = 0;  // the part of num_blocks that is in regions
};

// The blocks that an eviction covers.
struct CoveredBlocks {
  int32_t num_blocks = 0;
  int32_t num_own = 0;  // blocks that no other sequence holds
};

// The result of a reset of the prefix cache, in blocks.
struct CacheReset {
  int32_t num_dropped = 0;
  // Blocks that stay, because sequences use their entries.
  int32_t num_in_use = 0;
};

// A sequence that lost content, and how many positions it has left.
struct CutSequence {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
  friend bool operator==(const CutSequence&, const CutSequence&) = default;
};

// The result of a loss of blocks.
struct LossReport {
  std::vector<CutSequence> sequences;  // ascending by slot
  int32_t dropped_blocks = 0;          // blocks that the prefix cache gave up
};

// The result of a committed eviction.
struct EvictionReceipt {
  int64_t evicted_entries = 0;  // summed over layers and heads
  int32_t freed_blocks = 0;     // blocks that the sequence has less than before
  bool published = false;       // the cache has this region or an equal one
  bool cached = false;          // the cache has this very region
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_MANAGER_TYPES_H_
