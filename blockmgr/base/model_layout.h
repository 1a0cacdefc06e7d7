// All arithmetic on ids and bytes of the cache.
#ifndef BLOCKMGR_BASE_MODEL_LAYOUT_H_
#define BLOCKMGR_BASE_MODEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/ids.h"

namespace blockmgr {

// The kind of attention of a group's layers. It decides which pages a sequence
// holds in the group. Before a kind is added, read the users of kind_of(),
// has_windows(), window_of(), FirstPage() and group_windows.
enum class GroupKind : uint8_t {
  kFull,    // all tokens before the query
  kWindow,  // a window of the last tokens before the query
};

// The shape of a model's cache. A plain value. Daemon and engine compare it
// when an engine attaches.
//
// Layers with the same kind of attention form a layer group. A block serves one
// group: it has a page for every (layer, head) of the group. Group 0 attends to
// all tokens, or to the last `window` tokens in a model that has no other
// layers. Every further group g (a window group) attends to the last
// group_windows[g - 1] tokens, and keeps no other tokens. All groups have
// num_layers layer slots, so that their blocks are interchangeable. A model
// with more than num_layers sliding-window layers has several window groups,
// and the last one is padded. `layer` always means a slot of a group. Evictions
// take entries from group 0. They take entries from window groups only on
// request (EvictionTarget::window_keep_ratio). A model with `window` set is
// never evicted from.
//
// `head` always means KV head. Query heads are `q_head`. PageIds are dense:
//
//   page = (layer * num_blocks + block) * num_heads + head
//
// The pages of one layer are contiguous, and a kernel launch stays inside them.
//
// Tensor parallelism splits the heads evenly among shards. Shard r has the
// heads [r * shard_heads(), (r + 1) * shard_heads()) in a memory of its own.
// All shards use the same block ids. A block has a page for every (layer, head)
// of every shard. A page of one shard never serves a head of another shard. All
// functions are about the whole model unless their name or comment says
// "shard". Code that works in the memory of one shard uses ShardLayout(), in
// which heads and pages are those of the shard.
struct ModelLayout {
  // Far above any model.
  static constexpr int32_t kMaxWindowGroups = 64;
  static constexpr int32_t kMaxWindow = 1 << 30;  // tokens
  // The most query heads of all layers of a group together.
  static constexpr int32_t kMaxQueryHeads = 1 << 20;

  int32_t num_layers = 0;  // layers of each group
  int32_t num_heads = 0;   // KV heads of each layer
  // The query heads of each layer. Their number is a multiple of num_heads.
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;    // elements of one row (one token of K or of V)
  int32_t page_size = 16;  // tokens per page
  DType dtype = DType::kBFloat16;
  int32_t num_blocks = 0;  // blocks of the pool, with the null block
  // num_heads is a multiple of num_shards. Ranks that hold the same heads (more
  // ranks than KV heads) are one shard.
  int32_t num_shards = 1;
  // The number of tokens that the layers of group 0 attend to; 0 means all.
  int32_t window = 0;
  // The windows of the window groups, in tokens. If empty, group 0 is the only
  // group.
  std::vector<int32_t> group_windows = {};

  // Checks every field and the limits above. head_dim and page_size are at most
  // 2^14, a window has page_size to kMaxWindow tokens, and `window` is 0 if
  // there are window groups. Page ids fit int32 (num_layers * num_blocks *
  // num_heads < 2^31), and rows are 16-byte aligned. The message names the
  // field, what was expected and what came.
  absl::Status Validate() const;

  int32_t num_window_groups() const {
    return static_cast<int32_t>(group_windows.size());
  }
  int32_t num_groups() const { return 1 + num_window_groups(); }
  // Returns the window of the group in tokens; 0 means all tokens.
  int32_t window_of(int32_t group) const {
    return group == 0 ? window : group_windows[static_cast<size_t>(group - 1)];
  }
  GroupKind kind_of(int32_t group) const {
    return window_of(group) == 0 ? GroupKind::kFull : GroupKind::kWindow;
  }
  // Returns whether some group gives back tokens that leave its window.
  bool has_windows() const { return window > 0 || !group_windows.empty(); }
  // Returns the first page that a group has of a sequence of `length` tokens:
  // the first page that queries at positions from length - 1 on attend to. The
  // next query needs one token less. The extra token lets the last position be
  // computed again.
  int32_t FirstPage(int32_t group, int32_t length) const {
    const int32_t tokens = window_of(group);
    return tokens == 0 || length <= tokens ? 0 : (length - tokens) / page_size;
  }

  // Returns the number of query heads that share a KV head.
  int32_t group_size() const { return num_q_heads / num_heads; }
  // Pages of one block in all shards: one per (layer, head).
  int32_t pages_per_block() const { return num_layers * num_heads; }
  int32_t shard_heads() const { return num_heads / num_shards; }
  // Pages of one block in the memory of one shard.
  int32_t shard_pages_per_block() const { return num_layers * shard_heads(); }
  int64_t row_bytes() const { return int64_t{head_dim} * DTypeBytes(dtype); }
  // Returns the bytes of K and V of page_size tokens of one head in one layer.
  int64_t page_bytes() const { return 2 * row_bytes() * page_size; }
  // Bytes of one block in all shards together. Each shard has 1 / num_shards of
  // them.
  int64_t block_bytes() const { return page_bytes() * pages_per_block(); }
  // K and V of one token through all layers and heads, in all shards.
  int64_t token_bytes() const { return block_bytes() / page_size; }
  // Bytes of the pools of all shards together.
  int64_t pool_bytes() const { return block_bytes() * num_blocks; }
  int64_t num_pages() const {
    return int64_t{num_layers} * num_blocks * num_heads;
  }

  // Returns the index of (layer, head) in arrays of shape [num_layers,
  // num_heads].
  int32_t head_index(int32_t layer, int32_t head) const {
    return layer * num_heads + head;
  }
  // Returns the shard of a head in [0, num_heads).
  int32_t shard_of(int32_t head) const { return head / shard_heads(); }
  // Turns a shard's own index into [num_layers, shard_heads()] into the index
  // into the whole model's [num_layers, num_heads].
  int32_t shard_head_index(int32_t shard, int32_t own_index) const {
    return head_index(own_index / shard_heads(),
                      shard * shard_heads() + own_index % shard_heads());
  }
  // Returns the layout of one shard's memory: a model that has only the heads
  // of one shard.
  ModelLayout ShardLayout() const;
  PageId page_id(int32_t layer, BlockId block, int32_t head) const {
    return PageId{(layer * num_blocks + Index(block)) * num_heads + head};
  }
  int32_t page_layer(PageId page) const {
    return Index(page) / num_heads / num_blocks;
  }
  BlockId page_block(PageId page) const {
    return BlockId{Index(page) / num_heads % num_blocks};
  }
  int32_t page_head(PageId page) const { return Index(page) % num_heads; }
  SlotIndex slot(PageId page, int32_t offset) const {
    return SlotIndex{Index(page)} * page_size + offset;
  }

  std::string ToString() const;
  friend bool operator==(const ModelLayout&, const ModelLayout&) = default;
};

// The dimensions of one layer's tensor before the dimension of a row, outermost
// first. The dimension 2 is K, then V. The last two orders describe tensors
// [num_blocks, num_heads, page_size, 2 * head_dim]. kNhdPairs stores them one
// token after another (the default of vLLM), kHndPairs one head after another.
enum class KvTensorOrder : uint8_t {
  kPages,     // [num_blocks, num_heads, 2, page_size]: our own
  kHnd,       // [num_blocks, 2, num_heads, page_size]: FlashInfer, HND
  kNhd,       // [num_blocks, 2, page_size, num_heads]: FlashInfer, NHD
  kHndApart,  // [2, num_blocks, num_heads, page_size]: vLLM to 0.28, HND
  kNhdApart,  // [2, num_blocks, page_size, num_heads]: vLLM to 0.28, NHD
  kHndPairs,  // [num_blocks, num_heads, page_size, 2]: vLLM from 0.29, HND
  kNhdPairs,  // [num_blocks, page_size, num_heads, 2]: vLLM from 0.29, NHD
};
inline constexpr KvTensorOrder kAllKvTensorOrders[] = {
    KvTensorOrder::kPages,    KvTensorOrder::kHnd,
    KvTensorOrder::kNhd,      KvTensorOrder::kHndApart,
    KvTensorOrder::kNhdApart, KvTensorOrder::kHndPairs,
    KvTensorOrder::kNhdPairs};

// The places of the bytes of a pool: a base per layer, and byte strides. With
// strides, the same kernels run on our own arena and on the tensors that an
// engine already has (vLLM, FlashInfer). A row (one token of K or V) is
// contiguous. The strides describe the memory of one shard: pass a
// ShardLayout().
struct KvPoolLayout {
  int64_t layer_stride = 0;  // from the base of a layer to the next layer's
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t kv_stride = 0;  // distance of a token's V row from its K row
  int64_t token_stride = 0;

  // Returns the strides of tensors without padding, one layer after another.
  static KvPoolLayout Of(const ModelLayout& layout, KvTensorOrder order);
  // Returns the strides of our own arena, kPages.
  static KvPoolLayout PageContiguous(const ModelLayout& layout) {
    return Of(layout, KvTensorOrder::kPages);
  }

  // Returns the byte offset of a token's K row. The V row is kv_stride bytes
  // further.
  int64_t row_offset(int32_t layer, BlockId block, int32_t head,
                     int32_t offset) const {
    return layer * layer_stride + Index(block) * block_stride +
           head * head_stride + offset * token_stride;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_MODEL_LAYOUT_H_
