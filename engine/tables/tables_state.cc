#include "engine/tables/tables_state.h"

#include <algorithm>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

void TablesState::Reset() {
  rows.clear();
  committed.clear();
  regions.clear();
  swapped.clear();
  std::ranges::fill(host_holders, kNoSwap);
}

absl::Status TablesState::NoSlot(const char* field, SequenceSlot slot) const {
  return Invalid(field, ": expected a slot in [0, ", max_sequences, "), got ",
                 Index(slot));
}

TablesState::Committed TablesState::CommittedOf(SequenceSlot slot) const {
  const auto index = static_cast<size_t>(Index(slot));
  if (index < committed.size() && committed[index].step == num_steps) {
    return committed[index];
  }
  return {.step = num_steps};
}

std::vector<TableRegion> TablesState::RegionsAt(const SequenceTable& table,
                                                int32_t length) const {
  std::vector<TableRegion> attended(table.groups.size());
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    const auto index = static_cast<size_t>(group);
    const TableRegion& region = table.groups[index].region;
    if (IsAttended(region, group, length)) attended[index] = region;
  }
  return attended;
}

const TableRegion* TablesState::NamedRegion(const SequenceStart& start,
                                            int32_t group) const {
  const bool is_named =
      start.region != kNoRegion &&
      (start.swap == kNoSwap || layout.kind_of(group) == GroupKind::kFull);
  if (!is_named) return nullptr;
  return &regions.at(start.region)[static_cast<size_t>(group)];
}

const TableRegion* TablesState::TakenRegion(const SequenceStart& start,
                                            int32_t group) const {
  const TableRegion* region = NamedRegion(start, group);
  if (region == nullptr && start.swap != kNoSwap) {
    region = &swapped.at(start.swap).regions[static_cast<size_t>(group)];
  }
  const bool is_taken =
      region != nullptr && IsAttended(*region, group, start.num_cached_tokens);
  return is_taken ? region : nullptr;
}

CoveredTail TablesState::Covered(const EvictionOrder& order) const {
  const GroupTable& table = group_of(order.slot, order.group);
  CoveredTail covered;
  if (IsAttended(table.region, order.group, order.length + 1)) {
    covered.region = &table.region;
    covered.begin = table.region.cut;
  } else {
    covered.begin =
        layout.FirstPage(order.group, order.length + 1) * layout.page_size;
  }
  const auto page_of = [this](int32_t position) {
    return static_cast<size_t>(position / layout.page_size);
  };
  covered.blocks = std::span(table.blocks)
                       .subspan(page_of(covered.begin - table.region.cut),
                                page_of(order.cut) - page_of(covered.begin));
  return covered;
}

int32_t TablesState::CountHeldBelow(const EvictionOrder& order,
                                    int32_t head_index) const {
  const CoveredTail covered = Covered(order);
  const int32_t in_region =
      covered.region == nullptr
          ? 0
          : covered.region->kept[static_cast<size_t>(head_index)];
  return in_region + order.cut - covered.begin;
}

}  // namespace blockmgr
