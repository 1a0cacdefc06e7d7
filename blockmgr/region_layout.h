// RegionLayout: which pages of its blocks a region's heads have, as runs.
//
// A head mostly has its own page in one block after the other, so a few runs
// say what a list of thousands of pages says (RaggedRegion). The manager, which
// never reads a page, plans and keeps regions in this form; what it costs goes
// with the number of runs and of blocks, not of pages.
//
// Thread-safe (immutable value).
#ifndef BLOCKMGR_REGION_LAYOUT_H_
#define BLOCKMGR_REGION_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

// The pages of one (layer, head) in blocks [first, first + count) of a list,
// whichever head they serve.
struct PageRun {
  int32_t head_index = 0;
  int32_t first = 0;
  int32_t count = 0;

  friend bool operator==(const PageRun&, const PageRun&) = default;
};

// Pages that the heads of one shard need for `kept` entries per (layer, head)
// of all shards, [num_layers * num_heads].
int64_t ShardPages(const ModelLayout& layout, int32_t shard,
                   std::span<const int32_t> kept);

class RegionLayout {
 public:
  // Lays a new region out on `destinations`: any mix of fresh blocks, blocks of
  // the region `now` (null: there is none) and blocks of the tail after it.
  // docs/engine.md, "How a region is laid out", has the rule as a program. In
  // every shard by itself, with heads always in ascending (layer, head):
  //   1. For every head: its list begins with the destination pages that it
  //      holds, up to its need. These are its pages in `now` in list order,
  //      then its own pages of tail blocks in table order, then its own pages
  //      of fresh blocks in destination order.
  //   2. For every head that is still short (the outer loop): it takes vacant
  //      pages of its own layer in ascending (head, destination index); once
  //      its layer has none left, it takes vacant pages of any layer in
  //      ascending (layer, head, destination index). Only when it has all that
  //      it needs is the next head served.
  // kept: entries per (layer, head), [num_layers * num_heads].
  // REQUIRES: the pages that each shard needs fit into the destinations.
  // Cost: O(blocks + runs + heads * destinations / 64).
  static RegionLayout LayOut(const ModelLayout& layout, const RegionLayout* now,
                             std::span<const BlockId> tail_blocks,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> kept, int32_t cut);

  // What the region becomes when whole blocks are copied: from[i] to to[i].
  // REQUIRES: each of blocks() is among `from`. O(blocks).
  RegionLayout OnBlocks(std::span<const BlockId> from,
                        std::span<const BlockId> to) const;

  // Positions [0, cut) are the ones this region stands for.
  int32_t cut() const { return cut_; }
  // The destinations that hold at least one page of the region, in any shard.
  std::span<const BlockId> blocks() const { return blocks_; }
  // Kept entries per (layer, head).
  std::span<const int32_t> kept() const { return kept_; }
  // The pages of one head, in list order, in blocks().
  std::span<const PageRun> runs(int32_t head_index) const {
    return std::span(runs_).subspan(
        run_offsets_[head_index],
        run_offsets_[head_index + 1] - run_offsets_[head_index]);
  }
  // How many pages each (layer, head) held before the region was laid out (or
  // are its own in fresh blocks); they come first in its list. For compaction.
  std::span<const int32_t> held_pages() const { return held_pages_; }
  // Bytes of memory of its own, without this object.
  int64_t metadata_bytes() const {
    return HeapBytes(blocks_) + HeapBytes(kept_) + HeapBytes(run_offsets_) +
           HeapBytes(runs_) + HeapBytes(held_pages_);
  }
  // Sum of kept().
  int64_t num_entries() const { return num_entries_; }

 private:
  int32_t cut_ = 0;
  std::vector<BlockId> blocks_;
  std::vector<int32_t> kept_;         // [num_layers * num_heads]
  std::vector<int32_t> run_offsets_;  // [num_layers * num_heads + 1]
  std::vector<PageRun> runs_;
  std::vector<int32_t> held_pages_;  // [num_layers * num_heads]
  int64_t num_entries_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_REGION_LAYOUT_H_
