#include "blockmgr/base/layer_groups.h"

#include <algorithm>
#include <cstddef>

#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

// The window group that is being filled with layers of one window.
struct OpenGroup {
  int32_t window = 0;
  int32_t group = 0;
  int32_t num_slots_taken = 0;
};

// Gives a layer the next slot of its window's group, or a new group's first.
LayerPlace TakeSlot(int32_t window, std::vector<OpenGroup>* open,
                    LayerGroups* groups) {
  auto found = std::ranges::find(*open, window, &OpenGroup::window);
  if (found == open->end()) {
    open->push_back({.window = window, .num_slots_taken = groups->num_layers});
    found = open->end() - 1;
  }
  if (found->num_slots_taken == groups->num_layers) {
    groups->group_windows.push_back(window);
    found->group = static_cast<int32_t>(groups->group_windows.size());
    found->num_slots_taken = 0;
  }
  return {.group = found->group,
          .slot = found->num_slots_taken++,
          .window = window};
}

}  // namespace

int32_t LayerGroups::LayerAt(int32_t slot, int32_t group) const {
  const auto found = std::ranges::find_if(layers, [&](LayerPlace place) {
    return place.group == group && place.slot == slot;
  });
  if (found == layers.end()) return -1;
  return static_cast<int32_t>(found - layers.begin());
}

absl::StatusOr<LayerGroups> GroupLayers(std::span<const int32_t> windows) {
  if (windows.empty()) {
    return absl::InvalidArgumentError("windows: expected at least one layer");
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] >= 0) continue;
    return Invalid("windows[", i,
                   "]: expected 0 (all tokens) or a number of tokens, got ",
                   windows[i]);
  }
  LayerGroups groups;
  groups.num_layers =
      static_cast<int32_t>(std::ranges::count(windows, int32_t{0}));
  const bool is_one_group = groups.num_layers == 0;
  if (is_one_group) {
    groups.num_layers = static_cast<int32_t>(windows.size());
    groups.window = std::ranges::max(windows);
  }
  std::vector<OpenGroup> open;
  int32_t num_slots_taken = 0;  // of group 0
  for (const int32_t window : windows) {
    const bool is_in_group_0 = is_one_group || window == 0;
    groups.layers.push_back(
        is_in_group_0 ? LayerPlace{.slot = num_slots_taken++, .window = window}
                      : TakeSlot(window, &open, &groups));
  }
  return groups;
}

}  // namespace blockmgr
