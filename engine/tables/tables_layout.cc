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
  const CoveredTail covered = Covered(order);
  const RegionLayout* now = nullptr;
  if (covered.region != nullptr) {
    now = covered.region->layout.get();
    if (now == nullptr) return nullptr;
  }
  return std::make_shared<const RegionLayout>(
      RegionLayout::LayOut(layout_, now, covered.blocks,
                           Destinations(plan, order), counts, order.cut));
}

std::optional<uint64_t> EngineTables::ChecksumOf(
    const EvictionOrder& order) const {
  const RegionLayout* layout =
      group_of(order.slot, order.group).region.layout.get();
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

std::vector<int64_t> EngineTables::ShardEntries(
    std::span<const int32_t> kept) const {
  std::vector<int64_t> entries(static_cast<size_t>(layout_.num_shards), 0);
  for (size_t head = 0; head < kept.size(); ++head) {
    const int32_t shard =
        layout_.shard_of(static_cast<int32_t>(head) % layout_.num_heads);
    entries[static_cast<size_t>(shard)] += kept[head];
  }
  return entries;
}

}  // namespace blockmgr
