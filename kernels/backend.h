// What touches K and V: the interface of cpu/ (reference and oracle) and cuda/.
//
// A backend owns one arena of KV pages and executes batched plans on it: that
// of one shard, whose layout is ModelLayout::ShardLayout(). It knows pages,
// blocks and slots, nothing of sequences, requests or policies' bookkeeping.
// Results for one sequence do not depend on what else is in the batch, nor on
// how its tokens were split into calls: bit for bit, a token decoded alone and
// the same token inside a prefill chunk give the same output from the same
// table.
//
// Thread-compatible: one thread uses a backend at a time.
#ifndef KERNELS_BACKEND_H_
#define KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// One sequence's cache in one layer: per head an explicit page list (the
// region), then the pages implied by the tail's block table. Pointers are
// borrowed for the call.
struct SequenceKv {
  // CSR over heads: head h's pages are region_pages[region_offsets[h] ..
  // region_offsets[h + 1]), of which region_lengths[h] slots are live. Null
  // when there is no region.
  const PageId* region_pages = nullptr;
  const int32_t* region_offsets = nullptr;  // [num_heads + 1]
  const int32_t* region_lengths = nullptr;  // [num_heads]
  // Position of the token in each slot of the lists: slot i of head h's has
  // region_positions[region_offsets[h] * page_size + i]. May be null where
  // nobody asks: without a window.
  const int32_t* region_positions = nullptr;
  const BlockId* tail_blocks = nullptr;
  // Tokens in the tail, those of this call included; the same for every head.
  int32_t tail_length = 0;
  // Position of the tail's first token; read with region_positions only.
  int32_t cut = 0;
};

// Queries of one layer. Sequence i has the query tokens
// [query_offsets[i], query_offsets[i + 1]); they are the last tokens of its
// tail, in order. Query j attends the whole region and the tail up to itself,
// as far as they are in the window.
struct AttentionBatch {
  int32_t layer = 0;
  std::span<const SequenceKv> sequences;
  std::span<const int32_t> query_offsets;  // [sequences + 1]
  const float* queries = nullptr;          // [tokens, num_q_heads, head_dim]
  float* output = nullptr;                 // [tokens, num_q_heads, head_dim]
  float scale = 1.0f;                      // 1 / sqrt(head_dim) as a rule
  // A query attends to the last `window` positions, its own included; 0: to
  // all. Without a region, blocks that no query attends to are not looked at
  // and may be null. REQUIRES: 0, or regions come with their positions.
  int32_t window = 0;
};

// New rows of one layer, written to tail slots.
struct AppendBatch {
  int32_t layer = 0;
  // Per token: block * page_size + offset; -1 skips the token (padding).
  std::span<const int64_t> slot_mapping;
  const float* keys = nullptr;    // [tokens, num_heads, head_dim]
  const float* values = nullptr;  // [tokens, num_heads, head_dim]
};

// Live entries of one sequence in one layer: per head (CSR), in ascending
// position order, region and tail. Borrowed for the call.
struct EntryList {
  std::span<const int64_t> offsets;    // [num_heads + 1]
  std::span<const SlotIndex> slots;    // [offsets.back()]
  std::span<const int32_t> positions;  // [offsets.back()]
};

// The last `count` queries of a sequence of `length` tokens, oldest first.
struct QueryWindow {
  const float* queries = nullptr;  // [count, num_q_heads, head_dim]
  int32_t count = 0;
  int32_t length = 0;
};

// Running sums over a sequence's queries before rotation (expected_attention):
// of q and of q q^T per query head of one layer. Double, because the covariance
// is a difference of large numbers; token by token, so that chunks do not
// matter.
struct QueryStatistics {
  int64_t count = 0;
  std::vector<double> sums;      // [num_q_heads, head_dim]
  std::vector<double> products;  // [num_q_heads, head_dim, head_dim]
};

// Scores of one sequence and layer, for every scorer that reads keys.
// docs/algorithms.md has the exact formulas.
struct ScoreBatch {
  int32_t layer = 0;
  // Not streaming, random or external: those need no keys.
  ScorerSpec scorer;
  float scale = 1.0f;  // above 0
  EntryList entries;
  // snapkv, tova (count 1), h2o with obs_window.
  QueryWindow window;
  // h2o without obs_window: what AddAttention summed up, per entry.
  std::span<const float> attention_sums;  // [offsets.back()]
  // expected_attention: of the queries at positions >= n_sink.
  const QueryStatistics* statistics = nullptr;
  // Rotary frequencies: pair (i, i + head_dim / 2) turns by position *
  // inverse_frequencies[i]. [head_dim / 2]
  std::span<const double> inverse_frequencies;
  // critical(gqa_product): norms per query head, for each head h a matrix
  // [group_size, entries of h] (see ValueNormBatch), and the eps to add.
  std::span<const float> q_head_norms;
  float product_eps = 0.0f;

  // One score per entry. Entries inside the window (snapkv, tova) or before
  // n_sink (expected_attention) get +infinity: protected anyway.
  std::span<float> scores;  // [offsets.back()]
  // With q_head_norms: per entry the mean over the group of (score of the query
  // head + product_eps) * its norm; +infinity where the score is. Else empty.
  std::span<float> products;
};

// Adds to sums[entry] the attention that each query of the window pays it,
// summed over the group's query heads, in order of the queries. One layer.
struct AttentionSumBatch {
  int32_t layer = 0;
  float scale = 1.0f;  // above 0
  EntryList entries;
  QueryWindow window;
  std::span<float> sums;  // [offsets.back()], in and out
};

// Sizes of what entries add to the output: || v W_O || (CriticalKV).
struct ValueNormBatch {
  int32_t layer = 0;
  ValueNorm norm = ValueNorm::kL1;
  EntryList entries;
  // W_O of the layer by query head: head h's output is v times rows of h.
  // [num_q_heads, head_dim, model_dim]
  const float* output_projection = nullptr;
  int32_t model_dim = 0;
  // False: norms[entry] is the mean over the group, [offsets.back()]. True: one
  // per query head: head h's entries begin at group_size * offsets[h] as a
  // matrix [group_size, entries of h].
  bool per_query_head = false;
  std::span<float> norms;
};

// What one eviction of a sequence chooses from, over all layers and heads; the
// arguments of SelectEntries.
struct SelectBatch {
  EvictionPolicy policy;
  EvictionTarget target;
  HeadShape shape;
  EvictionRange range;
  EntriesView entries;
  std::span<const int32_t> external;  // budgets, [num_layers * num_heads]
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const ModelLayout& layout() const = 0;
  virtual void Append(const AppendBatch& batch) = 0;
  // Decode (one query per sequence) and causal chunked prefill alike.
  virtual void Attention(const AttentionBatch& batch) = 0;
  virtual void Score(const ScoreBatch& batch) = 0;
  virtual void AddAttention(const AttentionSumBatch& batch) = 0;
  virtual void ValueNorms(const ValueNormBatch& batch) = 0;
  // Adds queries before rotation, [num_tokens, num_q_heads, head_dim].
  virtual void AddQueries(const float* queries, int32_t num_tokens,
                          QueryStatistics* statistics) = 0;
  // Returns the entries that SelectEntries keeps, bit for bit.
  virtual KeepSets Select(const SelectBatch& batch) = 0;
  // Moves survivors to the pages of a new region, as PlaceSurvivors places
  // them. Returns the position of every slot of the region, as it does.
  virtual std::vector<int32_t> Compact(const Compaction& compaction) = 0;
  // Executes the groups of moves in their order.
  virtual void Move(const CompactionMoves& moves) = 0;
  // Copies whole blocks, all layers and heads. No block is both a source and a
  // destination in one call.
  virtual void CopyBlocks(std::span<const BlockCopy> copies) = 0;
  // Copies whole blocks to host memory and back. Host block i is at
  // host[i * layout().block_bytes()], as [layer][head][K, V][token][head_dim],
  // wherever the pool has these. Calls to the same memory, and to the pool,
  // take effect in their order; the memory is read or written on return.
  // REQUIRES: host is large enough.
  virtual void CopyToHost(std::span<const BlockTransfer> transfers,
                          std::span<std::byte> host) = 0;
  virtual void CopyFromHost(std::span<const BlockTransfer> transfers,
                            std::span<const std::byte> host) = 0;

  // Reads one slot back as float32, for tests and diagnostics. K then V:
  // out is [2, head_dim].
  virtual void ReadSlot(SlotIndex slot, std::span<float> out) const = 0;
  // Overwrites the whole arena with NaN, for tests.
  virtual void Poison() = 0;
};

// Allocates an arena of layout.pool_bytes() on the heap. Errors: a layout of
// several shards.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelLayout& layout);
// One for each shard of the model.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateCpuShards(
    const ModelLayout& layout);

}  // namespace blockmgr

#endif  // KERNELS_BACKEND_H_
