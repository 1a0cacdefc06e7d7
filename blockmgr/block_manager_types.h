// What BlockManager is asked for, and what it answers: plain data.
#ifndef BLOCKMGR_BLOCK_MANAGER_TYPES_H_
#define BLOCKMGR_BLOCK_MANAGER_TYPES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

// Where a region's destination blocks come from.
enum class CompactionPreference : uint8_t {
  kFreshFirst,  // copy to fresh blocks while there are some, else in place
  kInPlace,     // the sequence's own blocks first, fresh ones for the rest
};

struct BlockManagerStats {
  int32_t num_blocks = 0;  // of the pool, the null block included
  int32_t free_blocks = 0;
  int32_t cached_blocks = 0;      // held by the prefix cache alone: reclaimable
  int32_t fenced_blocks = 0;      // released, a step in flight may touch them
  int32_t used_blocks = 0;        // held by sequences
  uint64_t reclaimed_blocks = 0;  // since creation
  // By the prefix cache since creation, reclaimed or not.
  uint64_t dropped_entries = 0;
};

// What to publish a region as, see CommitEviction.
struct RegionPublication {
  RegionName name;
  const BlockChain* chain = nullptr;  // at least as far as name.length
  std::span<const int32_t> tokens;    // of the sequence, from position 0
};

struct TokenDemand {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
};

// An eviction to be ordered: of what a layer group has of positions [0, cut).
struct EvictionDemand {
  int32_t group = 0;
  int32_t cut = 0;         // a multiple of page_size
  int64_t page_total = 0;  // the most pages that any shard may use
  int32_t num_fresh = 0;   // of the destination blocks, the others are its own
  // What each shard may use, where they differ; empty: all the same.
  std::span<const int64_t> shard_page_totals = {};
};

// What a sequence alone holds in groups with a window.
struct OwnInWindows {
  int32_t num_blocks = 0;
  int32_t num_in_regions = 0;  // of these
};

// What an eviction covers: blocks, and those of them that nobody else holds.
struct CoveredBlocks {
  int32_t num_blocks = 0;
  int32_t num_own = 0;
};

// What became of the prefix cache.
struct CacheReset {
  int32_t num_dropped = 0;  // blocks
  int32_t num_in_use = 0;   // blocks that sequences hold, so they stay
};

// A sequence that lost content, and the positions it has left.
struct CutSequence {
  SequenceSlot slot = kNoSequenceSlot;
  int32_t num_tokens = 0;
  friend bool operator==(const CutSequence&, const CutSequence&) = default;
};

// What became of lost blocks.
struct LossReport {
  std::vector<CutSequence> sequences;  // ascending by slot
  int32_t dropped_blocks = 0;          // by the prefix cache
};

// What a committed eviction gave back.
struct EvictionReceipt {
  int64_t evicted_entries = 0;  // summed over layers and heads
  int32_t freed_blocks = 0;     // fewer blocks than before the order
  bool published = false;       // the region, or an equal one, can be found
  bool cached = false;          // it is this one that can be found
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_MANAGER_TYPES_H_
