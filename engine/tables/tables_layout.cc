// The page lists of regions, as the tables derive them from orders and counts.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "blockmgr/layout_checksum.h"
#include "blockmgr/region_layout.h"
#include "engine/tables/tables.h"

namespace blockmgr {

std::shared_ptr<const RegionLayout> EngineTables::LayOut(
    const StepPlan& plan, const EvictionOrder& order,
    std::span<const int32_t> counts) const {
  const SequenceTable& table = row(order.slot);
  CoveredTail covered{.begin = table.cut, .end = order.cut};
  std::span<const BlockId> tail = table.tail_blocks;
  const RegionLayout* now = table.region_layout.get();
  bool is_unknown = table.cut > 0 && now == nullptr;
  if (order.group > 0) {
    covered = CoveredInWindow(order);
    tail = std::span(table.window_blocks[static_cast<size_t>(order.group - 1)])
               .subspan(static_cast<size_t>(covered.begin / layout_.page_size));
    now = covered.region == nullptr ? nullptr : covered.region->layout.get();
    is_unknown = covered.region != nullptr && now == nullptr;
  }
  if (is_unknown) return nullptr;
  const int32_t num_pages = (covered.end - covered.begin) / layout_.page_size;
  return std::make_shared<const RegionLayout>(RegionLayout::LayOut(
      layout_, now, tail.first(static_cast<size_t>(num_pages)),
      Destinations(plan, order), counts, order.cut));
}

std::optional<uint64_t> EngineTables::ChecksumOf(
    const EvictionOrder& order) const {
  const SequenceTable& table = row(order.slot);
  const RegionLayout* layout =
      order.group == 0
          ? table.region_layout.get()
          : table.window_regions[static_cast<size_t>(order.group - 1)]
                .layout.get();
  if (layout == nullptr) return std::nullopt;
  return LayoutChecksum(layout_, *layout);
}

std::shared_ptr<const RegionLayout> EngineTables::OnBlocks(
    const std::shared_ptr<const RegionLayout>& layout,
    std::span<const BlockId> blocks) {
  if (layout == nullptr || layout->blocks().size() != blocks.size()) {
    return nullptr;
  }
  return std::make_shared<const RegionLayout>(
      layout->OnBlocks(layout->blocks(), blocks));
}

}  // namespace blockmgr
