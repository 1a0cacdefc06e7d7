// Regions of layer groups with a window.

#include <algorithm>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>

#include "engine/tables/tables.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/window_eviction.h"

namespace blockmgr {

int32_t EngineTables::SwappedCut(std::span<const TableRegion> regions,
                                 int32_t group, int32_t length) const {
  const int32_t cut = regions[static_cast<size_t>(group - 1)].cut;
  return cut > layout_.FirstPage(group, length) * layout_.page_size ? cut : 0;
}

std::span<const TableRegion> EngineTables::RegionsFor(
    const SequenceStart& start) const {
  if (start.swap != kNoSwap) return swapped_.at(start.swap).window_regions;
  if (start.region == kNoRegion) return {};
  return regions_.at(start.region).window_regions;
}

std::vector<TableRegion> EngineTables::RegionsWith(
    std::span<const TableRegion> regions, int32_t length) const {
  std::vector<TableRegion> with(regions.begin(), regions.end());
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    TableRegion& region = with[static_cast<size_t>(group - 1)];
    if (SwappedCut(regions, group, length) == 0) region = TableRegion();
  }
  return with;
}

void EngineTables::NotePastRegions(SequenceTable* table) const {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    TableRegion& region = table->window_regions[static_cast<size_t>(group - 1)];
    region.is_past = !IsInWindow(region, group, table->num_computed);
  }
}

absl::Status EngineTables::CheckWindowOrder(const EvictionOrder& order) const {
  if (order.region != kNoRegion) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: expected none of a group with a window, got ",
                     Index(order.region)));
  }
  const EvictionPolicy& policy = order.policy;
  if (policy.has_external_scores() ||
      policy.budget.kind == BudgetKind::kExternal || policy.needs_table() ||
      policy.scorer_state() != ScorerState::kNone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: expected scores and budgets of what a group with a window ",
        "has, got ", FormatPolicy(policy)));
  }
  const int32_t window = layout_.window_of(order.group);
  if (WindowEviction::IsCovered(window, order.cut, order.length)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cut: expected one above ", WindowEviction::FirstOf(window, order.length),
      ", from which on the group attends, got ", order.cut));
}

EngineTables::CoveredTail EngineTables::CoveredInWindow(
    const EvictionOrder& order) const {
  const TableRegion& region =
      row(order.slot).window_regions[static_cast<size_t>(order.group - 1)];
  CoveredTail covered;
  covered.begin =
      layout_.FirstPage(order.group, order.length + 1) * layout_.page_size;
  covered.end = order.cut;
  if (IsInWindow(region, order.group, order.length)) {
    covered.region = &region;
    covered.begin = region.cut;
  }
  return covered;
}

int32_t EngineTables::HeldBelow(const EvictionOrder& order,
                                int32_t head_index) const {
  const auto head = static_cast<size_t>(head_index);
  if (order.group == 0) {
    const SequenceTable& table = row(order.slot);
    return (table.kept.empty() ? 0 : table.kept[head]) + order.cut - table.cut;
  }
  const CoveredTail covered = CoveredInWindow(order);
  return (covered.region == nullptr ? 0 : covered.region->kept[head]) +
         covered.end - covered.begin;
}

void EngineTables::CommitInWindow(const StepPlan& plan,
                                  const EvictionOrder& order,
                                  std::span<const int32_t> counts) {
  SequenceTable& table = rows_[static_cast<size_t>(Index(order.slot))];
  const auto index = static_cast<size_t>(order.group - 1);
  const std::span<const BlockId> destinations = Destinations(plan, order);
  std::shared_ptr<const RegionLayout> layout = LayOut(plan, order, counts);
  table.window_regions[index] = {
      .cut = order.cut,
      .blocks = {destinations.begin(), destinations.end()},
      .kept = {counts.begin(), counts.end()},
      .layout = std::move(layout),
      .length = order.length};
  std::vector<BlockId>& blocks = table.window_blocks[index];
  std::fill_n(blocks.begin(), order.cut / layout_.page_size, kNullBlock);
  const RegionId name = KeptName(order.slot);
  if (name == kNoRegion) return;
  regions_.at(name).window_regions[index] = table.window_regions[index];
}

}  // namespace blockmgr
