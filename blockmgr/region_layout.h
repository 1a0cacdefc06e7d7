// RegionLayout: the pages that each head of a region has, stored as runs.
//
// Mostly a head has its own page in one block after the other. A few runs then
// say the same as a list of thousands of pages (RaggedRegion):
//
//   head 0   | head 0's pages of blocks 0..99 | head 1's of blocks 97..99 |
//   head 1   | head 1's pages of blocks 0..96 |
//
// The manager never reads a page. It plans and keeps regions as runs, so its
// cost grows with the number of runs and blocks, and not with the number of
// pages.
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

// The pages that one (layer, head) owns in the blocks [first, first + count) of
// a block list. Any head of the region may use them.
struct PageRun {
  int32_t head_index = 0;
  int32_t first = 0;
  int32_t count = 0;

  friend bool operator==(const PageRun&, const PageRun&) = default;
};

// Returns the number of pages that the heads of one shard need. `kept` has the
// entries per (layer, head) of all shards, [num_layers * num_heads].
int64_t CountShardPages(const ModelLayout& layout, int32_t shard,
                        std::span<const int32_t> kept);

class RegionLayout {
 public:
  // Lays a new region out on `destinations`. These may be fresh blocks, blocks
  // of the region `now` (null if there is none) and blocks of the tail behind
  // the region, in any mix. docs/engine.md, "How a region is laid out", has the
  // rule as a program. The heads of each shard are laid out among themselves,
  // in ascending (layer, head):
  //   1. The list of every head begins with the destination pages that the head
  //      holds already, at most as many as it needs: first its pages in `now`
  //      in list order, then its own pages of tail blocks in table order, then
  //      its own pages of fresh blocks in destination order.
  //   2. Each head that needs more pages then takes vacant ones, until it has
  //      enough. It takes pages of its own layer first, in ascending
  //      (head, destination index), then pages of any layer, in ascending
  //      (layer, head, destination index). Then the next head follows.
  // `kept` has the entries per (layer, head), [num_layers * num_heads].
  // REQUIRES: the pages that each shard needs fit into the destinations. Cost:
  // O(blocks + runs + heads * destinations / 64).
  static RegionLayout LayOut(const ModelLayout& layout, const RegionLayout* now,
                             std::span<const BlockId> tail_blocks,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> kept, int32_t cut);

  // Returns the region after its blocks were copied, from[i] to to[i].
  // REQUIRES: each of blocks() is among `from`. O(blocks).
  RegionLayout OnBlocks(std::span<const BlockId> from,
                        std::span<const BlockId> to) const;

  // The region stands for positions [0, cut).
  int32_t cut() const { return cut_; }
  // Returns the destinations that hold at least one page of the region.
  std::span<const BlockId> blocks() const { return blocks_; }
  // Returns the kept entries per (layer, head).
  std::span<const int32_t> kept() const { return kept_; }
  // Returns the pages of one head in list order. Runs index blocks().
  std::span<const PageRun> runs(int32_t head_index) const {
    return std::span(runs_).subspan(
        run_offsets_[head_index],
        run_offsets_[head_index + 1] - run_offsets_[head_index]);
  }
  // Returns how many pages of each (layer, head)'s list come from step 1. No
  // other head has entries there. For PlaceSurvivors.
  std::span<const int32_t> held_pages() const { return held_pages_; }
  // Returns the bytes of memory, without this object.
  int64_t metadata_bytes() const {
    return HeapBytes(blocks_) + HeapBytes(kept_) + HeapBytes(run_offsets_) +
           HeapBytes(runs_) + HeapBytes(held_pages_);
  }
  // Returns the sum of kept().
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
