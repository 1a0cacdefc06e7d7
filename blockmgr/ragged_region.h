// RaggedRegion: per (layer, head) a page list and a kept length, cut from whole
// blocks.
//
// A region replaces the tokens [0, cut) of a sequence after an eviction. Its
// pages come from the blocks it is built on; pages are interchangeable between
// heads and layers, so a region wastes less than one block, and freeing its
// blocks frees it all. Immutable once built. Manager and engine build equal
// regions from equal inputs (DESIGN "How a region is laid out"), so page lists
// never travel. Under tensor parallelism every shard's heads are laid out among
// themselves: a rank that lays its heads out by ShardLayout() gets the lists
// that the whole model's region has for them.
//
// Thread-safe (immutable value).
#ifndef BLOCKMGR_RAGGED_REGION_H_
#define BLOCKMGR_RAGGED_REGION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

class RaggedRegion;

// What a sequence's positions [0, covered) are stored in before an eviction:
// its region, if any, and the uniform tail blocks after it. Borrowed.
struct CacheView {
  const RaggedRegion* region = nullptr;
  std::span<const BlockId> tail_blocks;
};

// Pages that the heads of one shard need for `kept` entries per (layer, head)
// of all shards, [num_layers * num_heads].
int64_t ShardPages(const ModelLayout& layout, int32_t shard,
                   std::span<const int32_t> kept);

class RaggedRegion {
 public:
  // Lays a new region out on `destinations`, any mix of fresh blocks and blocks
  // of `now`, in order. In every shard by itself:
  //   1. Each head keeps the destination pages it holds, in list order (then
  //      its own pages of fresh blocks, in destination order), up to its need.
  //   2. Heads still short take vacant pages of their own layer in ascending
  //      (head, destination index), then those left in any layer, ascending
  //      (layer, head, destination index); heads are served in ascending
  //      (layer, head).
  // kept: entries per (layer, head), [num_layers * num_heads].
  // REQUIRES: the pages that each shard needs fit into the destinations.
  // Cost: O(pages of the destinations + pages of `now`).
  static RaggedRegion LayOut(const ModelLayout& layout, const CacheView& now,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> kept, int32_t cut);

  // What the region becomes when whole blocks are copied: from[i] to to[i].
  // REQUIRES: each of blocks() is among `from`. O(pages).
  RaggedRegion OnBlocks(const ModelLayout& layout,
                        std::span<const BlockId> from,
                        std::span<const BlockId> to) const;

  // Positions [0, cut) are the ones this region stands for.
  int32_t cut() const { return cut_; }
  // The destinations that hold at least one page of the region, in any shard.
  std::span<const BlockId> blocks() const { return blocks_; }
  // Kept entries per (layer, head).
  std::span<const int32_t> kept() const { return kept_; }
  // Pages of one head, in list order; its slots are numbered along them.
  std::span<const PageId> pages(int32_t head_index) const {
    return std::span(pages_).subspan(
        page_offsets_[head_index],
        page_offsets_[head_index + 1] - page_offsets_[head_index]);
  }
  // CSR over (layer, head): pages of head i are page_list()[page_offsets()[i]
  // .. page_offsets()[i + 1]).
  std::span<const int32_t> page_offsets() const { return page_offsets_; }
  std::span<const PageId> page_list() const { return pages_; }
  // Pages of a head that it held before the region was laid out (or that are
  // its own in fresh blocks); they come first in its list. For PlanCompaction.
  int32_t num_held_pages(int32_t head_index) const {
    return held_pages_[head_index];
  }
  // Bytes of memory of its own, without this object.
  int64_t metadata_bytes() const {
    return HeapBytes(blocks_) + HeapBytes(kept_) + HeapBytes(page_offsets_) +
           HeapBytes(pages_) + HeapBytes(held_pages_);
  }
  // Sum of kept().
  int64_t num_entries() const { return num_entries_; }

 private:
  int32_t cut_ = 0;
  std::vector<BlockId> blocks_;
  std::vector<int32_t> kept_;          // [num_layers * num_heads]
  std::vector<int32_t> page_offsets_;  // [num_layers * num_heads + 1]
  std::vector<PageId> pages_;
  std::vector<int32_t> held_pages_;  // [num_layers * num_heads]
  int64_t num_entries_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_RAGGED_REGION_H_
