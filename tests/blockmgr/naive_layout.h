// The layout rule of docs/engine.md, stated with sets and sorting instead of
// cursors. Slow, and written without a look at the product.
#ifndef TESTS_BLOCKMGR_NAIVE_LAYOUT_H_
#define TESTS_BLOCKMGR_NAIVE_LAYOUT_H_

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/ragged_region.h"

namespace blockmgr {

using NaiveHead = std::pair<int32_t, int32_t>;    // layer, head
using NaivePage = std::array<int32_t, 3>;         // layer, block, head
using NaiveSlot = std::pair<NaivePage, int32_t>;  // page, offset
using NaivePages = std::map<NaiveHead, std::vector<NaivePage>>;

struct NaiveShape {
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_shards = 1;
};

// The pages of an ordered slot list, in order of first use.
std::vector<NaivePage> PagesOf(const std::vector<NaiveSlot>& slots);

// The part of tensor parallelism that a head is in.
int32_t NaiveShardOf(const NaiveShape& shape, int32_t head);

// The page list of every head of a new region. `lists`: the pages each head
// uses now, in order; `counts`: the pages each head is to have.
NaivePages NaiveLayout(const NaiveShape& shape,
                       const std::vector<int32_t>& destinations,
                       const NaivePages& lists,
                       const std::map<NaiveHead, int32_t>& counts);

// The page lists of a region, in the same terms.
NaivePages PagesOf(const ModelLayout& layout, const RaggedRegion& region);

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_LAYOUT_H_
