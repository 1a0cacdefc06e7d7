// CachedPool: the blocks of a pool, and who holds them: sequences, the prefix
// cache, or both.
//
// A block, or the blocks of a region together, may have any number of holders
// among the sequences. The prefix cache is one more holder of what it indexes.
// A block that only the cache holds is *cached*. It is reclaimable once no step
// in flight may touch it, and cools until then.
//
//   held by a sequence -> cooling (fenced) -> reclaimable -> free
//                    ^------- Hold --------------|
//
// "Reclaim" takes a block from the cache for new content; vLLM calls this
// "evict". Cost: O(blocks named). Threads: core thread.
#ifndef BLOCKMGR_CACHED_POOL_H_
#define BLOCKMGR_CACHED_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/cooling_entries.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

class CachedPool {
 public:
  // REQUIRES: layout.Validate().ok().
  explicit CachedPool(const ModelLayout& layout);

  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }

  // Returns how many blocks Take could take now.
  int32_t num_available() const {
    return pool_.num_free() + cache_.num_reclaimable();
  }
  // Returns how many blocks become available when the steps in flight are
  // acknowledged.
  int32_t num_fenced() const {
    return pool_.num_fenced() + cooling_.num_blocks();
  }
  // Returns how many blocks only the cache holds.
  int32_t num_cached() const {
    return cache_.num_reclaimable() + cooling_.num_blocks();
  }
  // Returns how many blocks were reclaimed since creation.
  uint64_t num_reclaimed() const { return num_reclaimed_; }
  int64_t metadata_bytes() const { return cooling_.metadata_bytes(); }

  // Acknowledges a step (see BlockPool). Blocks that cooled behind the step are
  // reclaimable from now on.
  void Acknowledge(StepId step);

  // Takes available blocks, reclaiming cached ones when none is free. REQUIRES:
  // enough are available.
  void Take(std::span<BlockId> blocks);
  // Drops a sequence's hold on a block, or on all blocks of a region.
  void Release(BlockId block);
  void Release(const RegionRecord& region);
  // Adds a sequence's hold on what the cache has, which is of use again, and
  // passes the sequence's retention wish on. REQUIRES: the cache holds the
  // block, or the region of this entry.
  void Hold(BlockId block, const Retention* wish);
  void HoldRegion(int32_t entry, const Retention* wish);
  // Passes a sequence's retention wish for an entry on. Null is no wish.
  void ApplyRetention(int32_t entry, const Retention* wish) {
    if (wish != nullptr) cache_.SetRetention(entry, *wish);
  }

  // Returns whether at most one sequence holds the block, or the region. The
  // prefix cache may hold it, too: the hold of the cache can be dropped.
  bool IsOwn(BlockId block) const;
  bool IsOwn(const RegionRecord& region) const;
  // Returns for how many of the blocks IsOwn is true.
  int32_t CountOwn(std::span<const BlockId> blocks) const;
  // Returns whether an entry of the cache is not reclaimable yet, but will be.
  bool IsCooling(int32_t entry) const { return cooling_.Contains(entry); }

  // Marks entries to be reclaimed before others, because a new region is found
  // in their place. `blocks` are in page order. The call leaves out the first
  // num_found pages and marks the other blocks that only the cache holds.
  // kNoRegion is ignored.
  void Supersede(int32_t num_found, std::span<const BlockId> blocks);
  void Supersede(RegionId region);

  // Gives up the cache's hold on an entry. DropFromCache takes only entries
  // that are not reclaimable and do not cool.
  void Drop(int32_t entry);
  void DropFromCache(int32_t entry);
  // Drops all that only the cache holds.
  CacheReset Reset();
  // Appends the regions of the index group that were dropped since the last
  // call.
  void TakeDroppedRegions(std::vector<RegionId>* regions);

  // Audits the pool, the cache, and that their holds add up with those of the
  // sequences, holders[block]. O(pool), for tests.
  void CheckInvariants(std::span<const int32_t> holders) const;

 private:
  // Returns any block of an entry. All of its blocks were released together.
  BlockId SomeBlock(int32_t entry) const;
  // Makes an entry that only the cache holds reclaimable, after the fence.
  // `block` is any block of the entry.
  void BecomeUnused(int32_t entry, BlockId block);
  // Makes an entry that a sequence is about to use no longer reclaimable.
  void Wake(int32_t entry);
  void ReclaimNext();

  BlockPool pool_;
  PrefixCache cache_;
  CoolingEntries cooling_;  // entries that only the cache holds
  std::vector<RegionId> dropped_regions_;
  uint64_t num_reclaimed_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_CACHED_POOL_H_
