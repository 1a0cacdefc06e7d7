// Scores from the attention that future queries are expected to pay.
#ifndef KERNELS_CPU_EXPECTED_ATTENTION_H_
#define KERNELS_CPU_EXPECTED_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/packed_ops.h"
#include "kernels/cpu/query_statistics.h"

namespace blockmgr {

// Expected Attention (2510.00636): a future query is normal with mean
// mu' = R mu and covariance S' = R S R^T. mu and S are those of the queries so
// far, before rotation. R is the rotation, averaged over the next n_future
// positions. For each query head and entry j at a position >= n_sink:
//
//   z_j = scale <mu', k_j> + scale^2 / 2 <k_j, S' k_j>   (cov=true)
//   z_j = scale <mu', k_j>                               (cov=false)
//   a_j = the softmax of z over those entries, then the mean over the group
//   s_j = (a_j + eps) |v_j|                              (vnorm=true)
//   s_j = a_j                                            (vnorm=false)
//
// Entries at positions below n_sink get +infinity.
//
// Cost: with cov a product of entries * head_dim * head_dim per query head, and
// group_size * (entries + head_dim^2) floats of scratch. The scratch grows to
// the largest call and is kept. Thread-compatible.
class ExpectedAttentionScorer final : public CpuScorer {
 public:
  explicit ExpectedAttentionScorer(const ModelLayout& layout);

  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  // Sets logits_[g * stride + j] = z_j of query head g of the group.
  void Logits(const KvArena& arena, const ScoreBatch& batch,
              std::span<const FutureQueries> futures,
              std::span<const SlotIndex> slots, int64_t stride);

  const ModelLayout layout_;
  AlignedFloats packed_;            // the rows of one tile
  std::vector<const float*> rows_;  // the rows of one covariance
  std::vector<float> logits_;       // [group_size, stride]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_EXPECTED_ATTENTION_H_
