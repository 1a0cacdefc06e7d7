// KvLayout: ModelLayout for Python.
#include <array>
#include <cstdint>
#include <string>

#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "python/core/arrays.h"
#include "python/core/core.h"

namespace blockmgr::python {
namespace {

constexpr std::array<absl::string_view, 7> kOrderNames = {
    "pages", "hnd", "nhd", "hnd_apart", "nhd_apart", "hnd_pairs", "nhd_pairs"};

KvTensorOrder OrderNamed(const std::string& name) {
  for (size_t i = 0; i < kOrderNames.size(); ++i) {
    if (kOrderNames[i] == name) return kAllKvTensorOrders[i];
  }
  ThrowInvalid("order: expected one of ", absl::StrJoin(kOrderNames, ", "),
               ", got '", name, "'");
}

ModelLayout MakeLayout(int32_t num_layers, int32_t num_heads,
                       int32_t num_blocks, int32_t head_dim,
                       std::optional<int32_t> num_q_heads, int32_t page_size,
                       const std::string& dtype, int32_t num_shards,
                       int32_t window, IntsArgument group_windows) {
  if (std::ranges::find(kDTypeNames, dtype) == kDTypeNames.end()) {
    ThrowInvalid("dtype: expected one of ", absl::StrJoin(kDTypeNames, ", "),
                 ", got '", dtype, "'");
  }
  ModelLayout layout = {
      .num_layers = num_layers,
      .num_heads = num_heads,
      .num_q_heads = num_q_heads.value_or(num_heads),
      .head_dim = head_dim,
      .page_size = page_size,
      .dtype = DTypeNamed(dtype),
      .num_blocks = num_blocks,
      .num_shards = num_shards,
      .window = window,
      .group_windows = CopyInts<int32_t>("group_windows", group_windows)};
  ThrowIfError(layout.Validate());
  return layout;
}

void CheckIndex(const char* name, int32_t value, int32_t end) {
  if (value < 0 || value >= end) {
    ThrowInvalid(name, ": expected 0 to ", end - 1, ", got ", value);
  }
}

int64_t PageId(const ModelLayout& layout, int32_t layer, int32_t block,
               int32_t head) {
  CheckIndex("layer", layer, layout.num_layers);
  CheckIndex("block", block, layout.num_blocks);
  CheckIndex("head", head, layout.num_heads);
  return Index(layout.page_id(layer, BlockId{block}, head));
}

std::map<std::string, int64_t> Strides(const ModelLayout& layout,
                                       const std::string& order) {
  const KvPoolLayout pool = KvPoolLayout::Of(layout, OrderNamed(order));
  return {{"layer", pool.layer_stride},
          {"block", pool.block_stride},
          {"head", pool.head_stride},
          {"kv", pool.kv_stride},
          {"token", pool.token_stride}};
}

void BindSizes(nb::class_<ModelLayout>& type) {
  type.def_prop_ro("num_groups", &ModelLayout::num_groups,
                   "Layer groups: 1, and one for each of group_windows.")
      .def_prop_ro("pages_per_block", &ModelLayout::pages_per_block,
                   "Pages of a block: one for each (layer, head).")
      .def_prop_ro("page_bytes", &ModelLayout::page_bytes,
                   "Bytes of K and V of a page: page_size tokens of one head "
                   "of one layer.")
      .def_prop_ro("block_bytes", &ModelLayout::block_bytes,
                   "Bytes of a block, in all shards together.")
      .def_prop_ro(
          "token_bytes", &ModelLayout::token_bytes,
          "Bytes of K and V of one token through all layers and heads.")
      .def_prop_ro("pool_bytes", &ModelLayout::pool_bytes,
                   "Bytes of the whole pool, the null block included.");
}

}  // namespace

void BindLayout(nb::module_& m) {
  nb::class_<ModelLayout> type(
      m, "KvLayout",
      "The shape of a model's KV cache, and all arithmetic on ids and "
      "bytes.\n\n"
      "A page is page_size tokens of K and V of one KV head of one layer. A "
      "block is one\npage for each (layer, head). Page ids are "
      "(layer * num_blocks + block) * num_heads + head,\nand the slot of a "
      "token is page * page_size + offset. Block 0 is never handed out.");
  type.def("__init__", InitBy(&MakeLayout), nb::kw_only(),
           nb::arg("num_layers"), nb::arg("num_heads"), nb::arg("num_blocks"),
           nb::arg("head_dim"), nb::arg("num_q_heads") = nb::none(),
           nb::arg("page_size") = 16, nb::arg("dtype") = "bfloat16",
           nb::arg("num_shards") = 1, nb::arg("window") = 0,
           nb::arg("group_windows") = nb::tuple(),
           "num_heads are KV heads; num_q_heads (default: num_heads) are query "
           "heads.\nhead_dim counts elements, page_size tokens, window and "
           "group_windows tokens (0: all).\ndtype is float32, bfloat16 or "
           "float16. num_blocks includes the null block.")
      .def_ro("num_layers", &ModelLayout::num_layers)
      .def_ro("num_heads", &ModelLayout::num_heads)
      .def_ro("num_q_heads", &ModelLayout::num_q_heads)
      .def_ro("head_dim", &ModelLayout::head_dim)
      .def_ro("page_size", &ModelLayout::page_size)
      .def_ro("num_blocks", &ModelLayout::num_blocks)
      .def_ro("num_shards", &ModelLayout::num_shards)
      .def_ro("window", &ModelLayout::window)
      .def_ro("group_windows", &ModelLayout::group_windows)
      .def_prop_ro("dtype",
                   [](const ModelLayout& self) {
                     return std::string(DTypeName(self.dtype));
                   })
      .def("page_id", &PageId, nb::arg("layer"), nb::arg("block"),
           nb::arg("head"), "The id of a page.")
      .def("shard_layout", &ModelLayout::ShardLayout,
           "The layout of one shard's memory: a model with its heads only.")
      .def(
          "strides", &Strides, nb::arg("order") = "pages",
          "Byte strides {layer, block, head, kv, token} of a pool whose layers "
          "follow one\nanother. order says how the tensor of a layer is "
          "laid out: pages [num_blocks,\nnum_heads, 2, page_size, head_dim]; "
          "hnd, "
          "nhd (FlashInfer); hnd_apart, nhd_apart\n(vLLM to 0.28); hnd_pairs, "
          "nhd_pairs (vLLM from 0.29).")
      .def("__eq__", &IsEqual<ModelLayout>, nb::arg("other").none())
      .def("__repr__", [](const ModelLayout& self) {
        return "KvLayout(" + self.ToString() + ")";
      });
  BindSizes(type);
}

}  // namespace blockmgr::python
