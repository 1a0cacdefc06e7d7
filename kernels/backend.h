// The interface of a backend: the only code that touches K and V. kernels/cpu
// has the reference, kernels/cuda has the kernels for GPUs.
//
// A backend works on one arena of KV pages and executes batched plans on it. It
// owns the arena, unless the caller has passed the memory. The arena is the
// memory of one shard, with the layout ModelLayout::ShardLayout(). A backend
// knows pages, blocks and slots. It knows nothing of sequences, requests or the
// bookkeeping of policies.
//
// On the CPU, the results for one sequence do not depend on the other sequences
// of the batch, nor on how the sequence's tokens were split into calls. A token
// that is decoded alone and the same token inside a prefill chunk give the same
// output from the same table, bit for bit. CudaBackend promises this only for
// Attention, and only with CudaBackendOptions::Decode::kChunked.
//
// Thread-compatible: only one thread may use a backend at a time.
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

class DecodeStep;
class DeviceRuntime;
class ThreadPool;

// The cache of one sequence in one layer. Each head has an explicit page list
// (the region), followed by the pages that the tail's block table implies.
// Pointers are borrowed for the call.
struct SequenceKv {
  // CSR over heads. The pages of head h are region_pages[region_offsets[h] ..
  // region_offsets[h + 1]). region_lengths[h] of their slots are live. All
  // three pointers are null if there is no region.
  const PageId* region_pages = nullptr;
  const int32_t* region_offsets = nullptr;  // [num_heads + 1]
  const int32_t* region_lengths = nullptr;  // [num_heads]
  // The position of the token in each slot of the lists: slot i of head h has
  // region_positions[region_offsets[h] * page_size + i]. May be null in a call
  // without a window.
  const int32_t* region_positions = nullptr;
  const BlockId* tail_blocks = nullptr;
  // The number of tokens in the tail, with the tokens of this call. All heads
  // have the same tail.
  int32_t tail_length = 0;
  // The position of the tail's first token. Only read with region_positions.
  int32_t cut = 0;
};

// The queries of one layer. Sequence i has the query tokens [query_offsets[i],
// query_offsets[i + 1]). They are the last tokens of its tail, in order. A
// query attends to the whole region and to the tail up to its own token, as far
// as the window reaches.
struct AttentionBatch {
  int32_t layer = 0;
  std::span<const SequenceKv> sequences;
  std::span<const int32_t> query_offsets;  // [sequences + 1]
  const float* queries = nullptr;          // [tokens, num_q_heads, head_dim]
  float* output = nullptr;                 // [tokens, num_q_heads, head_dim]
  float scale = 1.0f;                      // usually 1 / sqrt(head_dim)
  // A query attends to the last `window` positions, its own included. 0 means
  // all positions. Without a region, blocks that no query attends to are not
  // read and may be null. REQUIRES: window == 0, or every region has positions.
  int32_t window = 0;
  // Learned sinks of the layer: logits without a value. Each joins the
  // denominators of its query head. In host memory. Null means none.
  const float* sinks = nullptr;  // [num_q_heads]
  // Threads that a backend on the CPU may use. The threads do not change a bit
  // of the result. Null means the calling thread alone.
  ThreadPool* threads = nullptr;
  // Queries and output in the memory of the backend's device, in the pool's
  // elements, instead of `queries` and `output`. The call then does not wait.
  // REQUIRES: null unless device_runtime() != nullptr.
  const void* device_queries = nullptr;
  void* device_output = nullptr;
};

// New rows of one layer, to be written to slots of tails.
struct AppendBatch {
  int32_t layer = 0;
  // Per token: block * page_size + offset, as in vLLM. This is no SlotIndex,
  // which counts pages. -1 skips the token (padding).
  std::span<const int64_t> slot_mapping;
  const float* keys = nullptr;    // [tokens, num_heads, head_dim]
  const float* values = nullptr;  // [tokens, num_heads, head_dim]
  // Rows in the memory of the backend's device, in the pool's elements, instead
  // of `keys` and `values`. REQUIRES: null unless device_runtime() != nullptr.
  const void* device_keys = nullptr;
  const void* device_values = nullptr;
  int64_t device_token_stride = 0;  // bytes, a multiple of 16
};

// The live entries of one sequence in one layer, in region and tail: per head
// (CSR), in ascending position order. Borrowed for the call.
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

// Running sums over the queries of one sequence in one layer, before rotation:
// of q and of q q^T per query head. expected_attention reads them. The sums are
// in double, because the covariance is a difference of large numbers. Tokens
// are added one by one, so that the split into chunks does not matter.
struct QueryStatistics {
  int64_t count = 0;
  std::vector<double> sums;      // [num_q_heads, head_dim]
  std::vector<double> products;  // [num_q_heads, head_dim, head_dim]
};

// Scores of one sequence in one layer, for every scorer that reads the pool.
// docs/algorithms.md has the exact formulas.
struct ScoreBatch {
  int32_t layer = 0;
  // REQUIRES: HasScorer(scorer.kind).
  ScorerSpec scorer;
  float scale = 1.0f;  // above 0
  EntryList entries;
  // The last queries, as many as EvictionPolicy::query_window() asks for.
  // `length` is always set.
  QueryWindow window;
  // Read with ScorerState::kAttentionSums: the sums of AddAttention, per entry.
  std::span<const float> attention_sums;  // [offsets.back()]
  // Read with ScorerState::kQueryStatistics: the statistics of the queries at
  // positions >= n_sink.
  const QueryStatistics* statistics = nullptr;
  // Rotary frequencies, [head_dim / 2]: the pair (i, i + head_dim / 2) is
  // rotated by position * inverse_frequencies[i].
  std::span<const double> inverse_frequencies;
  // critical(gqa_product): the norms per query head, for each head h a matrix
  // [group_size, entries of h] (see ValueNormBatch), and the eps to add. Empty
  // otherwise.
  std::span<const float> q_head_norms;
  float product_eps = 0.0f;

  // The results: one score per entry. Entries inside the window (snapkv, tova)
  // or before n_sink (expected_attention) get +infinity, because they are
  // protected.
  std::span<float> scores;  // [offsets.back()]
  // The results with q_head_norms: per entry the mean over the group of (score
  // of the query head + product_eps) * its norm, or +infinity where the score
  // is. Empty otherwise.
  std::span<float> products;
};

// Adds to sums[entry] the attention that each query of the window pays the
// entry, summed over the query heads of the group. Queries are added in their
// order. One layer.
struct AttentionSumBatch {
  int32_t layer = 0;
  float scale = 1.0f;  // above 0
  EntryList entries;
  QueryWindow window;
  std::span<float> sums;  // [offsets.back()], in and out
};

// Computes the sizes of what entries add to the output, || v W_O ||
// (CriticalKV, 2502.03805).
struct ValueNormBatch {
  int32_t layer = 0;
  ValueNorm norm = ValueNorm::kL1;
  EntryList entries;
  // W_O of the layer by query head, [num_q_heads, head_dim, model_dim]. The
  // output of query head h is v times the rows of h.
  const float* output_projection = nullptr;
  int32_t model_dim = 0;
  // False means that norms[entry] is the mean over the group,
  // [offsets.back()]. True means one norm per query head. The norms of head h
  // then begin at group_size * offsets[h] and form a matrix [group_size,
  // entries of h].
  bool per_query_head = false;
  std::span<float> norms;
};

// The arguments of SelectEntries for one eviction of a sequence, over all
// layers and heads.
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
  // Returns the device that the backend computes on, or null for the CPU. Work
  // that is enqueued on it runs in order with the backend's calls.
  virtual DeviceRuntime* device_runtime() { return nullptr; }
  // Returns the device's steps of single queries
  // (kernels/cuda/host/decode_step.h), or null for the CPU. Their tables are
  // uploaded before the first layer, so that a layer only launches kernels.
  virtual DecodeStep* decode_step() { return nullptr; }
  virtual void Append(const AppendBatch& batch) = 0;
  // Computes decode (one query per sequence) and causal chunked prefill.
  virtual void Attention(const AttentionBatch& batch) = 0;
  // Returns whether Score knows this scorer.
  virtual bool HasScorer(ScorerKind kind) const = 0;
  // REQUIRES: HasScorer(batch.scorer.kind).
  virtual void Score(const ScoreBatch& batch) = 0;
  virtual void AddAttention(const AttentionSumBatch& batch) = 0;
  virtual void ValueNorms(const ValueNormBatch& batch) = 0;
  // Adds queries before rotation, [num_tokens, num_q_heads, head_dim], to the
  // statistics.
  virtual void AddQueries(const float* queries, int32_t num_tokens,
                          QueryStatistics* statistics) = 0;
  // Returns the entries that SelectEntries keeps, bit for bit.
  virtual KeepSets Select(const SelectBatch& batch) = 0;
  // Moves survivors to the pages of a new region, to the slots that
  // PlaceSurvivors assigns. Returns the position of every slot of the region,
  // as PlaceSurvivors does.
  virtual std::vector<int32_t> Compact(const Compaction& compaction) = 0;
  // Executes the groups of moves in their order.
  virtual void Move(const CompactionMoves& moves) = 0;
  // Copies whole blocks, all layers and heads. No block is both a source and a
  // destination in one call.
  virtual void CopyBlocks(std::span<const BlockCopy> copies) = 0;
  // Copy whole blocks to host memory and back. Host block i begins at host[i *
  // layout().block_bytes()]. Its bytes are [layer][head][K,
  // V][token][head_dim], for every layout of the pool. Calls to the same
  // memory, and to the pool, take effect in their order. The memory has been
  // read or written when the call returns. REQUIRES: `host` holds every host
  // block that is named.
  virtual void CopyToHost(std::span<const BlockTransfer> transfers,
                          std::span<std::byte> host) = 0;
  virtual void CopyFromHost(std::span<const BlockTransfer> transfers,
                            std::span<const std::byte> host) = 0;

  // Reads one slot back as float32, for tests and diagnostics: K, then V. `out`
  // is [2, head_dim].
  virtual void ReadSlot(SlotIndex slot, std::span<float> out) const = 0;
  // Overwrites the whole arena with NaN, for tests.
  virtual void Poison() = 0;
};

// Creates a CPU backend with an arena of layout.pool_bytes() on the heap.
// Errors: a layout of several shards.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelLayout& layout);
// Creates a CPU backend on memory that the caller owns and that outlives the
// backend. The bytes have the layout KvPoolLayout::PageContiguous. Errors: a
// layout of several shards, or another size than layout.pool_bytes().
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendOn(
    const ModelLayout& layout, std::span<std::byte> pool);
// Creates one CPU backend for each shard of the model.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> CreateCpuShards(
    const ModelLayout& layout);

}  // namespace blockmgr

#endif  // KERNELS_BACKEND_H_
