// RaggedRegion: a page list and a number of kept entries for every (layer,
// head).
//
// A region replaces the positions [0, cut) of a sequence after an eviction. It
// is built on whole blocks. Each of their pages can serve any head of its
// shard, in any layer. So the shard that needs the most pages wastes less than
// one block, and freeing the blocks frees the whole region. Manager and engine
// build equal regions from equal inputs (docs/engine.md, "How a region is laid
// out"), so page lists are never sent. Under tensor parallelism the heads of
// each shard are laid out among themselves. A rank that lays out its own heads
// with ShardLayout() gets the same lists as the region of the whole model has
// for these heads.
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

// Borrowed view of the memory of a sequence before an eviction: the region, if
// any, and the tail blocks behind it.
struct CacheView {
  const RaggedRegion* region = nullptr;
  std::span<const BlockId> tail_blocks;
  int32_t tail_begin = 0;  // first position of the tail, if there is no region
};

class RaggedRegion {
 public:
  RaggedRegion() = default;
  // Expands the runs to page lists. O(pages).
  RaggedRegion(const ModelLayout& model, RegionLayout layout);

  // Calls RegionLayout::LayOut and expands the result. O(pages).
  static RaggedRegion LayOut(const ModelLayout& model, const CacheView& now,
                             std::span<const BlockId> destinations,
                             std::span<const int32_t> kept, int32_t cut);

  // Calls RegionLayout::OnBlocks and expands the result. O(pages).
  RaggedRegion OnBlocks(const ModelLayout& model, std::span<const BlockId> from,
                        std::span<const BlockId> to) const;

  const RegionLayout& layout() const { return layout_; }
  int32_t cut() const { return layout_.cut(); }
  std::span<const BlockId> blocks() const { return layout_.blocks(); }
  std::span<const int32_t> kept() const { return layout_.kept(); }
  std::span<const int32_t> held_pages() const { return layout_.held_pages(); }
  int64_t num_entries() const { return layout_.num_entries(); }
  // Returns the pages of one head in list order, which is the order of its
  // slots.
  std::span<const PageId> pages(int32_t head_index) const {
    return std::span(pages_).subspan(
        page_offsets_[head_index],
        page_offsets_[head_index + 1] - page_offsets_[head_index]);
  }
  // CSR over (layer, head): head i has the pages page_list()[page_offsets()[i]
  // .. page_offsets()[i + 1]).
  std::span<const int32_t> page_offsets() const { return page_offsets_; }
  std::span<const PageId> page_list() const { return pages_; }
  // Returns the bytes of memory, without this object.
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
