// Regions of layer groups with a window, and what orders cover.

#include <algorithm>
#include <utility>

#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

const CanaryWindowRegion* CanaryEngine::RegionFrom(const CanaryTable& table,
                                                   int32_t group,
                                                   int32_t first) {
  if (group == 0 || table.window_regions.empty()) return nullptr;
  const std::optional<CanaryWindowRegion>& region =
      table.window_regions.at(group - 1);
  return region.has_value() && region->layout.cut() > first ? &*region
                                                            : nullptr;
}

int32_t CanaryEngine::SwappedCut(const CanaryTable& table, int32_t group,
                                 int32_t length) const {
  const CanaryWindowRegion* const region = RegionFrom(
      table, group, layout_.FirstPage(group, length) * layout_.page_size);
  return region == nullptr ? 0 : region->layout.cut();
}

int32_t CanaryEngine::FirstAttended(int32_t group, int32_t length) const {
  const int32_t window = layout_.window_of(group);
  return window == 0 ? 0 : std::max(0, length + 1 - window);
}

absl::Status CanaryEngine::CheckCut(const CanaryTable& table,
                                    const EvictionOrder& order) const {
  if (order.group < 0 || order.group >= layout_.num_groups() ||
      (order.group > 0 && order.region != kNoRegion)) {
    return Wrong("order: group ", order.group, " of ", layout_.num_groups(),
                 ", region ", Index(order.region));
  }
  const int32_t first = FirstAttended(order.group, order.length);
  const CanaryWindowRegion* const region =
      RegionFrom(table, order.group, first);
  int32_t cut = table.cut();
  if (order.group > 0) cut = region == nullptr ? first : region->layout.cut();
  if (order.length == table.length() && order.cut % layout_.page_size == 0 &&
      order.cut < order.length && order.cut > cut) {
    return absl::OkStatus();
  }
  return Wrong("order: group ", order.group, ", cut ", order.cut, ", length ",
               order.length, " for a sequence of ", table.length(),
               " tokens and cut ", cut);
}

CacheView CanaryEngine::ViewBelow(const CanaryTable& table,
                                  const EvictionOrder& order) const {
  const int32_t page_size = layout_.page_size;
  CacheView view;
  if (order.group == 0) {
    view.region = table.region.has_value() ? &*table.region : nullptr;
    view.tail_blocks =
        std::span(table.tail).first((order.cut - table.cut()) / page_size);
    return view;
  }
  const int32_t first = FirstAttended(order.group, order.length);
  const CanaryWindowRegion* const region =
      RegionFrom(table, order.group, first);
  int32_t page = first / page_size;
  if (region != nullptr) {
    view.region = &region->layout;
    page = region->layout.cut() / page_size;
  }
  view.tail_begin = page * page_size;
  view.tail_blocks = std::span(table.windows.at(order.group - 1))
                         .subspan(page, order.cut / page_size - page);
  return view;
}

EntryIndex CanaryEngine::EntriesBelow(const CanaryTable& table,
                                      const EvictionOrder& order) const {
  const int32_t first = FirstAttended(order.group, order.length);
  const CanaryWindowRegion* const region =
      RegionFrom(table, order.group, first);
  std::span<const int32_t> positions = table.region_positions;
  if (order.group > 0) {
    positions = region == nullptr ? std::span<const int32_t>()
                                  : std::span(region->positions);
  }
  return IndexEntries(layout_, ViewBelow(table, order), positions, order.cut,
                      first);
}

void CanaryEngine::Replace(const EvictionOrder& order, RaggedRegion next,
                           std::vector<int32_t> positions,
                           CanaryTable* table) const {
  if (order.group > 0) {
    std::fill_n(table->windows.at(order.group - 1).begin(),
                order.cut / layout_.page_size, kNullBlock);
    table->window_regions.at(order.group - 1) = {
        .layout = std::move(next), .positions = std::move(positions)};
    return;
  }
  table->tail.erase(
      table->tail.begin(),
      table->tail.begin() + (order.cut - table->cut()) / layout_.page_size);
  table->region = std::move(next);
  table->region_positions = std::move(positions);
  table->evictions.push_back({.length = order.length, .cut = order.cut});
}

absl::Status CanaryEngine::Keep(const StepPlan& plan,
                                const EvictionOrder& order) {
  const CanaryTable& table = tables_[Index(order.slot)];
  if (order.group > 0) {
    for (const EvictionOrder& earlier : plan.evictions) {
      if (earlier.slot != order.slot || earlier.group > 0) continue;
      const auto kept = regions_.find(earlier.region);
      if (kept == regions_.end()) continue;  // no name, or it was refused
      kept->second.window_regions.at(order.group - 1) =
          table.window_regions.at(order.group - 1);
      kept->second.history = table.history;
    }
    return absl::OkStatus();
  }
  if (order.region == kNoRegion) return absl::OkStatus();
  CanaryRegion kept{.layout = *table.region,
                    .positions = table.region_positions,
                    .window_regions = table.window_regions,
                    .content = table.content,
                    .chain = table.chain[order.length - 1],
                    .history = table.history,
                    .evictions = table.evictions};
  LeavePastRegions(order.length, &kept.window_regions);
  if (regions_.try_emplace(order.region, std::move(kept)).second) {
    return absl::OkStatus();
  }
  return Wrong("region ", Index(order.region), " is made twice");
}

void CanaryEngine::LeavePastRegions(
    int32_t length,
    std::vector<std::optional<CanaryWindowRegion>>* regions) const {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    std::optional<CanaryWindowRegion>& region = regions->at(group - 1);
    const int32_t first = layout_.FirstPage(group, length) * layout_.page_size;
    if (region.has_value() && region->layout.cut() <= first) region.reset();
  }
}

absl::Status CanaryEngine::ReadRegion(const CanaryTable& table,
                                      int32_t group) const {
  const int32_t first = FirstRead(table, group);
  const CanaryWindowRegion& region = *RegionFrom(table, group, first);
  const EntryIndex entries =
      IndexEntries(layout_, {.region = &region.layout, .tail_blocks = {}},
                   region.positions, region.layout.cut(), first);
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    for (int64_t i = entries.offsets[h]; i < entries.offsets[h + 1]; ++i) {
      BM_RETURN_IF_ERROR(
          CheckTag(table, group, h, entries.positions[i], entries.slots[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
