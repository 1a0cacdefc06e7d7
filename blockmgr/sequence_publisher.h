// SequencePublisher: what a sequence adds to the prefix cache, so that others
// can begin with it.
//
// A sequence publishes the blocks of the index group in page order. Each block
// follows the one before it (SequenceCache::chain_serial). The blocks of the
// linked groups are found through the block of the index group that has the
// same page (PrefixCache). The cache becomes one more holder of every block
// that it takes.
//
// Borrows the pool for one call. Cost: O(blocks published).
#ifndef BLOCKMGR_SEQUENCE_PUBLISHER_H_
#define BLOCKMGR_SEQUENCE_PUBLISHER_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/cached_pool.h"
#include "blockmgr/sequence_cache.h"

namespace blockmgr {

class SequencePublisher {
 public:
  // Both are borrowed.
  SequencePublisher(const ModelLayout* layout, CachedPool* blocks)
      : layout_(*layout), blocks_(*blocks) {}

  // Makes `entry` the predecessor of the block that the sequence publishes
  // next.
  void ContinueAfter(int32_t entry, SequenceCache* sequence) const;
  // Makes the last full block that the sequence has left the predecessor of the
  // block that it publishes next. For a sequence that was cut back.
  void CutChain(SequenceCache* sequence) const;
  // Publishes every full block of settled tokens that is not published yet, up
  // to the first one that a pending eviction overwrites.
  void Publish(SequenceCache* sequence, std::span<const int32_t> tokens,
               const BlockChain& chain);
  // Publishes the sequence's new region and continues its chain over it.
  // Returns false if the region cannot be found again. Sets `is_cached` if the
  // cache has it. See BlockManager::CommitEviction.
  bool PublishRegion(const RegionPublication& publication,
                     SequenceCache* sequence, bool* is_cached);

 private:
  // Publishes the block behind the region, and returns it.
  BlockId PublishTail(const SequenceCache& sequence,
                      const RegionPublication& publication);
  // Publishes the linked blocks of the page of `entry`.
  void PublishLinkedBlocks(const SequenceCache& sequence, int32_t page,
                           int32_t entry, const Retention* wish);
  // Publishes a linked block. See PrefixCache::InsertLinked.
  void PublishLinkedBlock(int32_t entry, int32_t group, BlockId block,
                          const Retention* wish);
  // Publishes the linked blocks and regions that a region made at `length`
  // needs, and returns them for the region's entry to link.
  LinkedMemory PublishLinkedMemory(const SequenceCache& sequence,
                                   int32_t length, const Retention* wish);

  const ModelLayout& layout_;
  CachedPool& blocks_;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SEQUENCE_PUBLISHER_H_
