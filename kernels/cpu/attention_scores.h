// Scores from the attention that queries pay to entries: snapkv, tova, h2o.
#ifndef KERNELS_CPU_ATTENTION_SCORES_H_
#define KERNELS_CPU_ATTENTION_SCORES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/packed_ops.h"

namespace blockmgr {

// AttentionScorer computes attention weights, not outputs: A[q, j] is the
// softmax, over the entries j that query q sees (those up to its own position),
// of scale * <q, k_j>. With group_size G, the query heads of head h are hG ..
// hG + G - 1.
//
// The weights of a query are a function of its vector and of the ordered rows
// it sees, to the bit, so calls may split queries in any way.
//
// Cost: a product of the queries with all entries they see, as fast as matrix
// products go; group_size * entries + 32 * entries floats of scratch, which
// grows to the largest call and is kept. Thread-compatible.
class AttentionScorer {
 public:
  explicit AttentionScorer(const ModelLayout& layout);

  // SnapKV (2404.14469): s_h[j] = ReduceSnapKv of the means of A over the
  // window, for entries before the window.
  void SnapKv(const KvArena& arena, const ScoreBatch& batch);
  // TOVA (2401.06104), one query: s[j] = the sum of A[q, j] over all query
  // heads whose head holds the position, / num_q_heads: the same for all heads.
  void Tova(const KvArena& arena, const ScoreBatch& batch);
  // H2O (2306.14048): s_h[j] = the sum of A over queries and the group, /
  // G; with norm=count also / the number of queries that saw j.
  void H2o(const KvArena& arena, const ScoreBatch& batch);
  void AddAttention(const KvArena& arena, const AttentionSumBatch& batch);

 private:
  // What one pass over the queries of a window adds its weights to: row g of
  // `sums` for query head g of the group; one row for all if stride is 0.
  struct Sums {
    float* sums = nullptr;
    int64_t stride = 0;
    int64_t num_columns = 0;  // the first entries; weights of others are lost
  };
  struct Window {
    const QueryWindow& queries;
    float scale = 1.0f;
  };

  void AddWeights(const KvArena& arena, const Window& window, int32_t head,
                  const HeadEntries& entries, const Sums& out);
  // logits_[q * stride + j] of queries_ and the entries.
  void Logits(const KvArena& arena, float scale,
              std::span<const SlotIndex> slots, int64_t stride);
  // attention_ = [group_size, num_past]: A, averaged over the window.
  void AverageWindow(const KvArena& arena, const ScoreBatch& batch,
                     int32_t head, const HeadEntries& entries,
                     int64_t num_past);
  // products of the first num_past entries, from rows of scores per query head.
  void Products(const ScoreBatch& batch, const HeadEntries& entries,
                int64_t num_past, const float* rows);

  const ModelLayout layout_;
  AlignedFloats packed_;               // one tile
  std::vector<const float*> queries_;  // at most kWindowRows + group_size
  std::vector<float> logits_;          // [queries_.size(), stride]
  std::vector<float> attention_;       // [group_size, num_past]
  std::vector<float> pooled_;          // [group_size, num_past]
  std::vector<float> by_position_;     // tova: [length]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_ATTENTION_SCORES_H_
