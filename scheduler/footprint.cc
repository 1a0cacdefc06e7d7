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

int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout) {
  return static_cast<int32_t>(
      CeilDiv<int64_t>(PagesOf(point, layout), layout.pages_per_block()));
}

int32_t PeakBlocks(int32_t length,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout) {
  const int32_t page_size = layout.page_size;
  int32_t peak = 0;
  int32_t region = 0;
  int32_t cut = 0;
  for (const CompressionPoint& point : compressions) {
    if (point.length > length) break;
    peak = std::max(peak, region + CeilDiv(point.length - cut, page_size));
    const int32_t next = RegionBlocks(point, layout);
    if (next >= region + (point.cut - cut) / page_size) continue;
    region = next;
    cut = point.cut;
  }
  return std::max(peak, region + CeilDiv(length - cut, page_size));
}

}  // namespace blockmgr
