// LayoutChecksum: one number for the page lists of a region, by which manager
// and engine find out whether they have derived the same ones.
//
// docs/engine.md, "The checksum of a layout", defines it over page lists:
//
//   of a head   hash = head_index
//               for x in kept, pages...:  hash = hash * kMultiplier + x
//               then Finish(hash)
//   in all      the sum over the heads, so that ranks may add theirs up
//
// all modulo 2^64. As hash * kMultiplier + x is a polynomial, the sum over a
// run of pages follows from sums over the blocks: the manager needs no lists.
//
// Thread-safe (pure functions).
#ifndef BLOCKMGR_LAYOUT_CHECKSUM_H_
#define BLOCKMGR_LAYOUT_CHECKSUM_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_layout.h"

namespace blockmgr {

// Returns the checksum of a region of the whole model (or, for a rank, of what
// the rank calls the whole model). Cost: O(blocks + runs + heads).
uint64_t LayoutChecksum(const ModelLayout& model, const RegionLayout& region);

// Returns the part of the checksum that one head adds, from its page list. Head
// index and pages are those of the whole model. Cost: O(pages).
uint64_t HeadChecksum(int32_t head_index, int32_t kept,
                      std::span<const PageId> pages);

}  // namespace blockmgr

#endif  // BLOCKMGR_LAYOUT_CHECKSUM_H_
