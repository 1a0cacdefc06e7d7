// LayoutChecksum: a number for the page lists of a region. Manager and engine
// compare it to find out whether they have derived the same lists.
//
// docs/engine.md, "The checksum of a layout", defines it over page lists,
// modulo 2^64:
//
//   a head      hash = head_index
//               for x in kept, pages...:  hash = hash * kMultiplier + x
//               then Finish(hash)
//   a region    the sum over its heads, so that ranks may add theirs up
//
// The hash is a polynomial. The manager computes its part for a run of pages
// from sums over the blocks, and needs no page lists.
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

// Returns the checksum of a region of the whole model. A rank may pass its own
// part as a model. Cost: O(blocks + runs + heads).
uint64_t LayoutChecksum(const ModelLayout& model, const RegionLayout& region);

// Returns the part of the checksum that one head adds. Head index and page ids
// are those of the whole model. Cost: O(pages).
uint64_t HeadChecksum(int32_t head_index, int32_t kept,
                      std::span<const PageId> pages);

}  // namespace blockmgr

#endif  // BLOCKMGR_LAYOUT_CHECKSUM_H_
