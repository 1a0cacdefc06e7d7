// Where a model's layers are in a ModelLayout: which group each belongs to, and
// which of its layer slots it has.
#ifndef BLOCKMGR_BASE_LAYER_GROUPS_H_
#define BLOCKMGR_BASE_LAYER_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

// A layer of the model. Its pages are those of `slot` (what plans, layouts and
// kernels call layer) in the blocks of `group`.
struct LayerPlace {
  int32_t group = 0;
  int32_t slot = 0;
  int32_t window = 0;  // tokens that the layer attends to; 0: all
  friend bool operator==(const LayerPlace&, const LayerPlace&) = default;
};

// A plain value: the layout's fields, and the model's layers in it.
struct LayerGroups {
  // Fields of ModelLayout.
  int32_t num_layers = 0;
  int32_t window = 0;
  std::vector<int32_t> group_windows;

  std::vector<LayerPlace> layers;  // [layers of the model]

  // The layer that has a slot of a group; -1: nobody has, it is padding. Group
  // 0 has none.
  int32_t LayerAt(int32_t slot, int32_t group = 0) const;
};

// Groups layers by how many tokens each attends to (0: all). Layers that attend
// to all are the slots of group 0, in order. The others, window by window in
// order of appearance, fill groups of as many slots; the last of each window is
// padded. In a model without layers that attend to all, all layers are slots of
// one group, which keeps the longest of their windows.
//
// InvalidArgument for no layers and for a negative window. Windows shorter than
// a page, and too many groups, are left to ModelLayout::Validate.
absl::StatusOr<LayerGroups> GroupLayers(std::span<const int32_t> windows);

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_LAYER_GROUPS_H_
