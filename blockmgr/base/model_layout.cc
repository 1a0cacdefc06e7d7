#include "blockmgr/base/model_layout.h"

#include <array>
#include <limits>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

absl::Status RequireAtLeast(const char* field, int64_t value, int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return Invalid(field, ": expected at least ", minimum, ", got ", value);
}

absl::Status RequireAtMost(const char* field, int64_t value, int64_t maximum) {
  if (value <= maximum) return absl::OkStatus();
  return Invalid(field, ": expected at most ", maximum, ", got ", value);
}

// Far above any model; with them 2^31 pages are below 2^63 bytes.
constexpr int64_t kMaxRowElements = 1 << 14;
constexpr int64_t kMaxPageSize = 1 << 14;

}  // namespace

absl::Status ModelLayout::Validate() const {
  for (const absl::Status& status :
       {RequireAtLeast("num_layers", num_layers, 1),
        RequireAtLeast("num_heads", num_heads, 1),
        RequireAtLeast("num_q_heads", num_q_heads, 1),
        RequireAtLeast("head_dim", head_dim, 1),
        RequireAtLeast("page_size", page_size, 1),
        RequireAtLeast("num_blocks", num_blocks, 2),
        RequireAtLeast("num_shards", num_shards, 1)}) {
    if (!status.ok()) return status;
  }
  for (const absl::Status& status :
       {RequireAtMost("head_dim", head_dim, kMaxRowElements),
        RequireAtMost("page_size", page_size, kMaxPageSize)}) {
    if (!status.ok()) return status;
  }
  if (num_q_heads % num_heads != 0) {
    return Invalid("num_q_heads: expected a multiple of num_heads (", num_heads,
                   "), got ", num_q_heads);
  }
  if (num_heads % num_shards != 0) {
    return Invalid("num_shards: expected a divisor of num_heads (", num_heads,
                   "), got ", num_shards);
  }
  if (row_bytes() % 16 != 0) {
    return Invalid("head_dim: expected rows of a multiple of 16 bytes, got ",
                   row_bytes(), " (head_dim ", head_dim, ")");
  }
  if (num_q_heads > kMaxQueryHeads / num_layers) {
    return Invalid("num_q_heads: expected num_layers * num_q_heads at most ",
                   kMaxQueryHeads, ", got ", num_layers, " * ", num_q_heads);
  }
  if (window != 0 && (window < page_size || window > kMaxWindow)) {
    return Invalid("window: expected 0 (all tokens) or at least page_size (",
                   page_size, "), at most ", kMaxWindow, ", got ", window);
  }
  if (window != 0 && !group_windows.empty()) {
    return Invalid(
        "window: expected 0 (group 0 attends to all tokens) in a model with "
        "window groups, got ",
        window);
  }
  BM_RETURN_IF_ERROR(RequireAtMost("group_windows.size()", num_window_groups(),
                                   kMaxWindowGroups));
  for (size_t i = 0; i < group_windows.size(); ++i) {
    if (group_windows[i] < page_size || group_windows[i] > kMaxWindow) {
      return Invalid("group_windows[", i, "]: expected at least page_size (",
                     page_size, "), at most ", kMaxWindow, ", got ",
                     group_windows[i]);
    }
  }
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  // Divided rather than multiplied: the product of three int32 can overflow.
  if (num_blocks > kLimit / num_layers / num_heads) {
    return Invalid(
        "num_blocks: expected num_layers * num_blocks * num_heads below 2^31, "
        "got ",
        num_layers, " * ", num_blocks, " * ", num_heads);
  }
  return absl::OkStatus();
}

ModelLayout ModelLayout::ShardLayout() const {
  ModelLayout shard = *this;
  shard.num_heads /= num_shards;
  shard.num_q_heads /= num_shards;
  shard.num_shards = 1;
  return shard;
}

std::string ModelLayout::ToString() const {
  const std::string shards =
      num_shards == 1 ? "" : absl::StrCat(", ", num_shards, " shards");
  std::string windows;
  if (window > 0) windows = absl::StrCat(", window ", window);
  if (!group_windows.empty()) {
    windows =
        absl::StrCat(", window groups of ", absl::StrJoin(group_windows, ", "));
  }
  return absl::StrFormat(
      "%d layers, %d heads (%d q_heads), head_dim %d, page_size %d, %s, %d "
      "blocks%s%s",
      num_layers, num_heads, num_q_heads, head_dim, page_size, DTypeName(dtype),
      num_blocks, shards, windows);
}

KvPoolLayout KvPoolLayout::Of(const ModelLayout& layout, KvTensorOrder order) {
  struct Dimension {
    int64_t KvPoolLayout::*stride;
    int64_t size;
  };
  const Dimension block = {&KvPoolLayout::block_stride, layout.num_blocks};
  const Dimension head = {&KvPoolLayout::head_stride, layout.num_heads};
  const Dimension token = {&KvPoolLayout::token_stride, layout.page_size};
  const Dimension kv = {&KvPoolLayout::kv_stride, 2};
  std::array<Dimension, 4> dimensions = {};  // outermost first
  switch (order) {
    case KvTensorOrder::kPages:
      dimensions = {block, head, kv, token};
      break;
    case KvTensorOrder::kHnd:
      dimensions = {block, kv, head, token};
      break;
    case KvTensorOrder::kNhd:
      dimensions = {block, kv, token, head};
      break;
    case KvTensorOrder::kHndApart:
      dimensions = {kv, block, head, token};
      break;
    case KvTensorOrder::kNhdApart:
      dimensions = {kv, block, token, head};
      break;
    case KvTensorOrder::kHndPairs:
      dimensions = {block, head, token, kv};
      break;
    case KvTensorOrder::kNhdPairs:
      dimensions = {block, token, head, kv};
      break;
  }
  KvPoolLayout pool;
  int64_t stride = layout.row_bytes();
  for (auto it = dimensions.rbegin(); it != dimensions.rend(); ++it) {
    pool.*(it->stride) = stride;
    stride *= it->size;
  }
  pool.layer_stride = stride;
  return pool;
}

}  // namespace blockmgr
