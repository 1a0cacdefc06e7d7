// The places of a model's layers in a ModelLayout: each layer has a slot in a
// layer group.
#ifndef BLOCKMGR_BASE_LAYER_GROUPS_H_
#define BLOCKMGR_BASE_LAYER_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

// The place of one layer of the model. The layer's pages are the pages of layer
// `slot` in the blocks of `group`. Plans, layouts and kernels call the slot
// `layer`.
struct LayerPlace {
  int32_t group = 0;
  int32_t slot = 0;
  // The number of tokens that the layer attends to. 0 means all tokens.
  int32_t window = 0;
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

// The fields of a layout, and the places of the model's layers in it. A plain
// value.
struct LayerGroups {
  // Fields of ModelLayout.
  int32_t num_layers = 0;
  int32_t window = 0;
  std::vector<int32_t> group_windows;

  std::vector<LayerPlace> layers;  // [layers of the model]

  // Returns the layer that has this slot of the group, or -1 if the slot is
  // padding. Group 0 has no padding.
  int32_t LayerAt(int32_t slot, int32_t group = 0) const;
};

// Groups layers by the number of tokens that each layer attends to (0 means
// all). Layers that attend to all tokens become the slots of group 0, in order.
// The other layers fill window groups, window by window in the order of
// appearance. Every group has as many slots as group 0, and the last group of
// each window is padded. If no layer attends to all tokens, all layers become
// slots of one group, which keeps the longest window.
//
// Errors: InvalidArgument for no layers and for a negative window.
// ModelLayout::Validate refuses windows that are shorter than a page, and too
// many groups.
absl::StatusOr<LayerGroups> GroupLayers(std::span<const int32_t> windows);

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_LAYER_GROUPS_H_
