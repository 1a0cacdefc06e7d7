// GroupRegion and GroupCache: what one sequence holds in one layer group.
//
// The layers of a group attend to the same span: all tokens before them (full
// attention), or a window of the last tokens (ModelLayout::window_of). The span
// decides which pages a group holds (ModelLayout::FirstPage, which is 0 for
// full attention). Where spans differ further, the code asks
// ModelLayout::kind_of() or has_windows(): how far a sequence can go back, and
// what evictions, swaps, partial hits and publications allow.
//
// Every operation on what a sequence holds is written once, for any group. Only
// to find content, group 0 comes before the others: it is the *index group*.
// The prefix cache finds what the others, the *linked groups*, have through
// links from its entries (PrefixCache). So SequencePublisher and PrefixMatcher
// go by the index group, then by the links. A match that the host tier
// continues has cached blocks of the index group only.
#ifndef BLOCKMGR_GROUP_CACHE_H_
#define BLOCKMGR_GROUP_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/pending_eviction.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

struct PageRange {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t size() const { return end - begin; }
};

// The region of a group, which stands for the positions [0, cut), or for those
// of them that are in the span. A plain record: of a sequence (GroupCache), of
// a sequence in the host tier, or of a compressed prefix in the prefix cache.
struct GroupRegion {
  // Null if the group has no region.
  std::shared_ptr<const RegionRecord> region;
  // The number of tokens that were computed when the region was made. If there
  // is no region now, the last region counts. The region has the entries that
  // queries from that position on attend to, as far as they were kept. 0 if
  // there was no region.
  int32_t region_length = 0;

  int32_t num_region_blocks() const {
    return region == nullptr ? 0 : static_cast<int32_t>(region->blocks.size());
  }
  int32_t cut() const { return region == nullptr ? 0 : region->cut; }
  // Returns whether queries at positions from length - 1 on attend to no page
  // of a region (see ModelLayout::FirstPage). True without a region.
  bool IsPast(const ModelLayout& layout, int32_t group, int32_t length) const {
    return cut() <= layout.FirstPage(group, length) * layout.page_size;
  }
  // Returns the pages of the tail that an eviction of positions
  // [0, cut_position) covers when `length` tokens are computed: those that the
  // next token attends to. The eviction covers the region, too, unless the
  // region is past then.
  PageRange CoveredPages(const ModelLayout& layout, int32_t group,
                         int32_t cut_position, int32_t length) const {
    const int32_t end = cut_position / layout.page_size;
    const int32_t begin =
        std::max(cut() / layout.page_size, layout.FirstPage(group, length + 1));
    return {std::min(begin, end), end};
  }
  // Returns the number of blocks that this eviction covers.
  int32_t CountCovered(const ModelLayout& layout, int32_t group,
                       int32_t cut_position, int32_t length) const {
    return CoveredPages(layout, group, cut_position, length).size() +
           (IsPast(layout, group, length + 1) ? 0 : num_region_blocks());
  }
  // Returns the pages behind the region that `length` settled tokens need.
  // REQUIRES: the region, if any, is not past then.
  PageRange PagesBehind(const ModelLayout& layout, int32_t group,
                        int32_t length) const {
    return {std::max(cut() / layout.page_size, layout.FirstPage(group, length)),
            CeilDiv(length, layout.page_size)};
  }
};

// The blocks of a sequence in a layer group: [region] + tail.
//
//   pages   0 ...... first ...... cut ...... tail_begin + tail.size()
//           |  left  |   region   |   blocks of the tail   |
//
// In a group of full attention, no page leaves the span, and the tail begins
// where the region ends. With a window, `first` moves on with every settled
// token. Blocks of pages before `first` are given back, and null in the tail.
// Entries of the region before `first` count for nothing. The region is given
// back whole when `first` reaches the cut.
struct GroupCache : GroupRegion {
  int32_t tail_begin = 0;  // the page of tail[0]
  std::vector<BlockId> tail;
  // Null if no eviction of the group is ordered.
  std::shared_ptr<const PendingEviction> pending;

  // Returns the page behind the table.
  int32_t tail_end() const {
    return tail_begin + static_cast<int32_t>(tail.size());
  }
  // Returns the block of a page. Null if the page left the span, or if the
  // region stands for it. REQUIRES: page < tail_end().
  BlockId block(int32_t page) const {
    return page < tail_begin ? kNullBlock
                             : tail[static_cast<size_t>(page - tail_begin)];
  }
  // Returns the tail's blocks of pages [begin, end), as far as it has them.
  // REQUIRES: tail_begin <= begin <= tail_end().
  std::span<const BlockId> Blocks(PageRange pages) const {
    const int32_t end = std::max(pages.begin, std::min(pages.end, tail_end()));
    return std::span(tail).subspan(
        static_cast<size_t>(pages.begin - tail_begin),
        static_cast<size_t>(end - pages.begin));
  }
  // Returns what an eviction of positions [0, cut_position) covers when
  // `length` tokens are computed.
  HeldBlocks Covered(const ModelLayout& layout, int32_t group,
                     int32_t cut_position, int32_t length) const {
    const PageRange pages = CoveredPages(layout, group, cut_position, length);
    return {
        .region = IsPast(layout, group, length + 1) ? nullptr : region.get(),
        .cut = pages.begin * layout.page_size,
        .tail = Blocks(pages)};
  }
  // Returns all that the group holds.
  HeldBlocks held(int32_t page_size) const {
    return {
        .region = region.get(), .cut = tail_begin * page_size, .tail = tail};
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_GROUP_CACHE_H_
