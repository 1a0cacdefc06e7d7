// The part of EngineTables that works on the blocks and regions of layer
// groups.

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "engine/tables/tables.h"

namespace blockmgr {

EngineTables::CoveredTail EngineTables::Covered(
    const EvictionOrder& order) const {
  const GroupTable& table = group_of(order.slot, order.group);
  CoveredTail covered;
  if (IsAttended(table.region, order.group, order.length + 1)) {
    covered.region = &table.region;
    covered.begin = table.region.cut;
  } else {
    covered.begin =
        layout_.FirstPage(order.group, order.length + 1) * layout_.page_size;
  }
  const auto page_of = [this](int32_t position) {
    return static_cast<size_t>(position / layout_.page_size);
  };
  covered.blocks = std::span(table.blocks)
                       .subspan(page_of(covered.begin - table.region.cut),
                                page_of(order.cut) - page_of(covered.begin));
  return covered;
}

int32_t EngineTables::HeldBelow(const EvictionOrder& order,
                                int32_t head_index) const {
  const CoveredTail covered = Covered(order);
  const int32_t in_region =
      covered.region == nullptr
          ? 0
          : covered.region->kept[static_cast<size_t>(head_index)];
  return in_region + order.cut - covered.begin;
}

const TableRegion* EngineTables::TakenRegion(const SequenceStart& start,
                                             int32_t group) const {
  const std::vector<TableRegion>* regions = nullptr;
  // A start from the host takes at most the region of group 0 by name.
  if (start.region != kNoRegion && (start.swap == kNoSwap || group == 0)) {
    regions = &regions_.at(start.region);
  } else if (start.swap != kNoSwap) {
    regions = &swapped_.at(start.swap).regions;
  }
  if (regions == nullptr) return nullptr;
  const TableRegion& region = (*regions)[static_cast<size_t>(group)];
  return IsAttended(region, group, start.num_cached_tokens) ? &region : nullptr;
}

absl::Status EngineTables::CheckNewBlocks(const StepPlan& plan, size_t run,
                                          const SequenceStart* start,
                                          int64_t end) const {
  const SequenceSlot slot = plan.slots[run];
  const int64_t page_size = layout_.page_size;
  int64_t reached = 0;  // the position behind the last block, in all groups
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> blocks = plan.NewBlocks(layout_, run, group);
    const auto fail = [&](const auto&... parts) {
      return Invalid("plan.blocks of slot ", Index(slot), ", group ", group,
                     ": ", parts...);
    };
    int64_t begin = 0;  // the first position of the new blocks
    int64_t first = 0;  // the first position that has a block
    if (start == nullptr) {
      const GroupTable& table = group_of(slot, group);
      begin = table.region.cut + std::ssize(table.blocks) * page_size;
    } else if (start->source != kNoSequenceSlot) {
      begin = CeilDiv<int64_t>(start->num_cached_tokens, page_size) * page_size;
    } else {
      const TableRegion* const region = TakenRegion(*start, group);
      begin = region == nullptr ? 0 : region->cut;
      first = layout_.FirstPage(group, start->num_cached_tokens) * page_size;
    }
    const int64_t behind = begin + std::ssize(blocks) * page_size;
    if (group == 0) reached = behind;
    if (end > behind) {
      return fail("expected blocks for positions below ", end,
                  ", got blocks for positions below ", behind);
    }
    if (behind != reached) {
      return fail("expected blocks for positions below ", reached,
                  ", as in group 0, got blocks for positions below ", behind);
    }
    for (const BlockId block : blocks) {
      const bool is_left_out = begin < first;
      if ((block == kNullBlock) != is_left_out) {
        return fail("expected ", is_left_out ? "no block" : "a block",
                    " for page ", begin / page_size, ", got ", Index(block));
      }
      begin += page_size;
    }
  }
  return absl::OkStatus();
}

std::vector<TableRegion> EngineTables::RegionsAt(const SequenceTable& table,
                                                 int32_t length) const {
  std::vector<TableRegion> regions(table.groups.size());
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const auto index = static_cast<size_t>(group);
    const TableRegion& region = table.groups[index].region;
    if (IsAttended(region, group, length)) regions[index] = region;
  }
  return regions;
}

void EngineTables::CutBlocks(int32_t num_tokens, SequenceTable* table) const {
  for (GroupTable& group : table->groups) {
    const auto num_blocks = static_cast<size_t>(
        CeilDiv(num_tokens - group.region.cut, layout_.page_size));
    BM_DCHECK(group.blocks.size() >= num_blocks);
    group.blocks.resize(num_blocks);
  }
}

}  // namespace blockmgr
