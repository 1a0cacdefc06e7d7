// RaggedRegion: per (layer, head) a page list and a kept length, cut from whole
// blocks.
//
// A region replaces the tokens [0, cut) of a sequence after an eviction. Its
// pages come from the blocks it is built on; pages are interchangeable between
// heads and layers, so a region wastes less than one block, and freeing its
// blocks frees it all. Immutable once built. Manager and engine build equal
// regions from equal inputs (docs/engine.md, "How a region is laid out"), so
// page lists never travel. Under tensor parallelism every shard's heads are
// laid out among themselves: a rank that lays its heads out by ShardLayout()
// gets the lists that the whole model's region has for them.
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
#include "blockmgr/region_layout.h"

namespace blockmgr {

class RaggedRegion;

// What a sequence's positions [0, covered) are stored in before an eviction:
// its region, if any, and the uniform tail blocks after it. Borrowed.
struct CacheView {
  const RaggedRegion* region = nullptr;
  std::span<const BlockId> tail_blocks;
  int32_t tail_begin = 0;  // without a region: the tail's first position
};

class RaggedRegion {
 public:
  RaggedRegion() = default;
  // The lists that the runs stand for. O(pages).
  RaggedRegion(const ModelLayout& model, RegionLayout layout);

  // RegionLayout::LayOut, in full. O(pages).
  static RaggedRegion LayOut(const ModelLayout& model, const CacheView& now,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> kept, int32_t cut);

  // RegionLayout::OnBlocks, in full. O(pages).
  RaggedRegion OnBlocks(const ModelLayout& model, std::span<const BlockId> from,
                        std::span<const BlockId> to) const;

  const RegionLayout& layout() const { return layout_; }
  int32_t cut() const { return layout_.cut(); }
  std::span<const BlockId> blocks() const { return layout_.blocks(); }
  std::span<const int32_t> kept() const { return layout_.kept(); }
  std::span<const int32_t> held_pages() const { return layout_.held_pages(); }
  int64_t num_entries() const { return layout_.num_entries(); }
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
  // Bytes of memory of its own, without this object.
  int64_t metadata_bytes() const {
    return layout_.metadata_bytes() + HeapBytes(page_offsets_) +
           HeapBytes(pages_);
  }

 private:
  RegionLayout layout_;
  std::vector<int32_t> page_offsets_;  // [num_layers * num_heads + 1]
  std::vector<PageId> pages_;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_RAGGED_REGION_H_
