#include "scheduler/footprint.h"

#include <algorithm>

#include "blockmgr/base/bits.h"

namespace blockmgr {

HeadShape ShapeOf(const ModelLayout& layout) {
  return {.num_layers = layout.num_layers,
          .num_heads = layout.num_heads,
          .page_size = layout.page_size};
}

int32_t LargestCut(int32_t length, int32_t page_size) {
  return (length - 1) / page_size * page_size;
}

int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout) {
  const EvictionRange range{.cut = point.cut, .length = point.length};
  if (point.budgets != nullptr) {
    return PageTotalExternal(*point.budgets, point.policy, ShapeOf(layout),
                             range);
  }
  return PageTotal(point.policy, point.target, ShapeOf(layout), range);
}

int32_t RegionBlocks(const CompressionPoint& point,
                     const ModelLayout& layout) {
  return static_cast<int32_t>(
      CeilDiv<int64_t>(PagesOf(point, layout), layout.pages_per_block()));
}

int32_t PeakBlocks(int32_t num_prompt, int32_t last_length,
                   const CompressionPoint* after_prefill,
                   const ModelLayout& layout) {
  const int32_t page_size = layout.page_size;
  const int32_t all = CeilDiv(last_length, page_size);
  if (after_prefill == nullptr) return all;
  const int32_t region = RegionBlocks(*after_prefill, layout);
  if (region >= after_prefill->cut / page_size) return all;  // never ordered
  return std::max(CeilDiv(num_prompt, page_size),
                  region + CeilDiv(last_length - after_prefill->cut,
                                   page_size));
}

}  // namespace blockmgr
