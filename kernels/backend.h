// What touches K and V: the interface of cpu/ (reference and oracle) and cuda/.
//
// A backend owns one arena of KV pages and executes batched plans on it. It
// knows pages, blocks and slots, nothing of sequences, requests or policies'
// bookkeeping. Results for one sequence do not depend on what else is in the
// batch, nor on how its tokens were split into calls: bit for bit, a token
// decoded alone and the same token inside a prefill chunk give the same output
// from the same table.
//
// Thread-compatible: one thread uses a backend at a time.
#ifndef KERNELS_BACKEND_H_
#define KERNELS_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/policy.h"

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
  const BlockId* tail_blocks = nullptr;
  // Tokens in the tail, those of this call included; the same for every head.
  int32_t tail_length = 0;
};

// Queries of one layer. Sequence i has the query tokens
// [query_offsets[i], query_offsets[i + 1]); they are the last tokens of its
// tail, in order. Query j attends the whole region and the tail up to itself.
struct AttentionBatch {
  int32_t layer = 0;
  std::span<const SequenceKv> sequences;
  std::span<const int32_t> query_offsets;  // [sequences + 1]
  const float* queries = nullptr;          // [tokens, num_q_heads, head_dim]
  float* output = nullptr;                 // [tokens, num_q_heads, head_dim]
  float scale = 1.0f;                      // 1 / sqrt(head_dim) as a rule
};

// New rows of one layer, written to tail slots.
struct AppendBatch {
  int32_t layer = 0;
  // Per token: block * page_size + offset; -1 skips the token (padding).
  std::span<const int64_t> slot_mapping;
  const float* keys = nullptr;    // [tokens, num_heads, head_dim]
  const float* values = nullptr;  // [tokens, num_heads, head_dim]
};

// SnapKV scores of one sequence and layer.
struct SnapKvBatch {
  int32_t layer = 0;
  ScorerSpec scorer;
  float scale = 1.0f;
  // The observation window: queries of the last `num_queries` tokens of a
  // sequence of `length` tokens, oldest first.
  const float* queries = nullptr;  // [num_queries, num_q_heads, head_dim]
  int32_t num_queries = 0;
  int32_t length = 0;
  // Per head (CSR) every live entry of the sequence in ascending position
  // order, region and tail: its slot and its position.
  std::span<const int64_t> offsets;    // [num_heads + 1]
  std::span<const SlotIndex> slots;    // [offsets.back()]
  std::span<const int32_t> positions;  // [offsets.back()]
  // One score per entry; entries inside the window get +infinity (protected
  // anyway), the past gets pooled attention.
  std::span<float> scores;  // [offsets.back()]
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const ModelLayout& layout() const = 0;

  virtual void Append(const AppendBatch& batch) = 0;
  // Decode (one query per sequence) and causal chunked prefill alike.
  virtual void Attention(const AttentionBatch& batch) = 0;
  virtual void SnapKvScores(const SnapKvBatch& batch) = 0;
  // Executes phase 1, then phase 2.
  virtual void Move(const CompactionMoves& moves) = 0;
  // Copies whole blocks, all layers and heads. No block is both a source and a
  // destination in one call.
  virtual void CopyBlocks(std::span<const BlockCopy> copies) = 0;

  // Reads one slot back as float32, for tests and diagnostics. K then V:
  // out is [2, head_dim].
  virtual void ReadSlot(SlotIndex slot, std::span<float> out) const = 0;
  // Overwrites the whole arena with NaN, for tests.
  virtual void Poison() = 0;
};

// Allocates an arena of layout.pool_bytes() on the heap.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelLayout& layout);

}  // namespace blockmgr

#endif  // KERNELS_BACKEND_H_
