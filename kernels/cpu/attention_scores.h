// Scores from the attention that queries pay to entries: snapkv, tova, h2o.
#ifndef KERNELS_CPU_ATTENTION_SCORES_H_
#define KERNELS_CPU_ATTENTION_SCORES_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/functional/function_ref.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/packed_ops.h"

namespace blockmgr {

// AttentionWeights computes attention weights without outputs.
//
// A[q, j] is the softmax of scale * <q, k_j> over the entries j that query q
// sees: the entries up to the query's own position. The query heads of head h
// are h * group_size .. (h + 1) * group_size - 1.
//
// The weights of a query depend on its vector and on the ordered rows that it
// sees, bit for bit. Calls may therefore split queries in any way.
//
// Cost: one matrix product of the queries with all entries they see, and
// group_size * entries + 32 * entries floats of scratch. The scratch grows to
// the largest call and is kept. Thread-compatible.
class AttentionWeights {
 public:
  explicit AttentionWeights(const ModelLayout& layout);

  // Adds the weights of each query of the window to batch.sums.
  void AddTo(const KvArena& arena, const AttentionSumBatch& batch);

  // Returns A, averaged over the window, of the first num_past entries:
  // [group_size, num_past]. The result is valid until the next call.
  std::span<const float> Average(const KvArena& arena, const ScoreBatch& batch,
                                 int32_t head, const HeadEntries& entries,
                                 int64_t num_past);

  // Calls use(g, logits) for every query of the window, in their order, and
  // every query head g of the group: the logits of the entries that the query
  // sees, before the softmax. The span may be changed and is valid until `use`
  // returns. A query that sees nothing is left out.
  void ForEachRow(
      const KvArena& arena, const ScoreBatch& batch, int32_t head,
      const HeadEntries& entries,
      absl::FunctionRef<void(int32_t g, std::span<float> logits)> use);

 private:
  // The sums that one pass over a window adds its weights to. Row g is for
  // query head g of the group. With stride 0 all query heads share one row.
  struct Sums {
    float* sums = nullptr;
    int64_t stride = 0;
    int64_t num_columns = 0;  // weights of later entries are dropped
  };
  struct Window {
    const QueryWindow& queries;
    float scale = 1.0f;
  };

  void Add(const KvArena& arena, const Window& window, int32_t head,
           const HeadEntries& entries, const Sums& out);
  void Visit(const KvArena& arena, const Window& window, int32_t head,
             const HeadEntries& entries,
             absl::FunctionRef<void(int32_t g, std::span<float> logits)> use);
  // Fills logits_[q * stride + j] for queries_ and the entries.
  void Logits(const KvArena& arena, float scale,
              std::span<const SlotIndex> slots, int64_t stride);

  const ModelLayout layout_;
  AlignedFloats packed_;               // the rows of one tile
  std::vector<const float*> queries_;  // at most kWindowRows + group_size
  std::vector<float> logits_;          // [queries_.size(), stride]
  std::vector<float> average_;         // [group_size, num_past]
};

// SnapKV (2404.14469): s_h[j] = ReduceSnapKv of the means of A over the window,
// for the entries before the window.
class SnapKvScorer final : public CpuScorer {
 public:
  explicit SnapKvScorer(const ModelLayout& layout) : weights_(layout) {}
  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  AttentionWeights weights_;
  std::vector<float> pooled_;  // [group_size, num_past]
};

// TOVA (2401.06104), one query: s[j] = the sum of A[q, j] over all query heads
// whose head holds the position, / num_q_heads. All heads get the same score.
class TovaScorer final : public CpuScorer {
 public:
  explicit TovaScorer(const ModelLayout& layout) : weights_(layout) {}
  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  AttentionWeights weights_;
  std::vector<float> by_position_;  // [length]
};

// H2O (2306.14048): s_h[j] = the sum of A over queries and the group, divided
// by group_size. With norm=count s_h[j] is also divided by the number of
// queries that saw j.
class H2oScorer final : public CpuScorer {
 public:
  explicit H2oScorer(const ModelLayout& layout) : weights_(layout) {}
  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  AttentionWeights weights_;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_ATTENTION_SCORES_H_
