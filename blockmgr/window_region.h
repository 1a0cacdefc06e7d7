// WindowRegion: the region of a layer group with a window.
#ifndef BLOCKMGR_WINDOW_REGION_H_
#define BLOCKMGR_WINDOW_REGION_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/region_record.h"

namespace blockmgr {

struct PageRange {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t size() const { return end - begin; }
};

// What stands for the positions [0, cut) of a sequence in a group with a
// window, as far as that reaches. A plain record: of a sequence (WindowCache),
// of one in the host tier, or of a compressed prefix in the prefix cache.
struct WindowRegion {
  std::shared_ptr<const RegionRecord> region;  // null: none
  // Tokens computed when the region, or the last one, was made: it has what
  // queries from there on attend to, as far as kept. 0: there was none.
  int32_t region_length = 0;

  int32_t num_blocks() const {
    return region == nullptr ? 0 : static_cast<int32_t>(region->blocks.size());
  }
  int32_t cut() const { return region == nullptr ? 0 : region->cut; }
  // Whether there is no region that is in the window of what comes after
  // `length` tokens.
  bool IsPast(const ModelLayout& layout, int32_t group, int32_t length) const {
    return cut() <= layout.FirstPage(group, length) * layout.page_size;
  }
  // What an eviction of positions [0, cut_position) covers when `length` tokens
  // are computed, of all that the next one attends to: pages of the tail, and
  // the region unless that is past then.
  PageRange CoveredPages(const ModelLayout& layout, int32_t group,
                         int32_t cut_position, int32_t length) const {
    const int32_t end = cut_position / layout.page_size;
    const int32_t begin =
        std::max(cut() / layout.page_size, layout.FirstPage(group, length + 1));
    return {std::min(begin, end), end};
  }
  // Blocks of those.
  int32_t NumCovered(const ModelLayout& layout, int32_t group,
                     int32_t cut_position, int32_t length) const {
    return CoveredPages(layout, group, cut_position, length).size() +
           (IsPast(layout, group, length + 1) ? 0 : num_blocks());
  }
  // Pages behind the region that `length` settled tokens need. REQUIRES: it is
  // not past then.
  PageRange PagesBehind(const ModelLayout& layout, int32_t group,
                        int32_t length) const {
    return {std::max(cut() / layout.page_size, layout.FirstPage(group, length)),
            CeilDiv(length, layout.page_size)};
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_WINDOW_REGION_H_
