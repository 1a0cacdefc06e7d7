// Scores from the attention that queries to come are expected to pay.
#ifndef KERNELS_CPU_EXPECTED_ATTENTION_H_
#define KERNELS_CPU_EXPECTED_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/packed_ops.h"
#include "kernels/cpu/query_statistics.h"

namespace blockmgr {

// Expected Attention (2510.00636): a query to come is normal with mean mu' = R
// mu and covariance S' = R S R^T, where mu and S are those of the queries so
// far, before rotation, and R is the rotation averaged over the next n_future
// positions. Per query head and entry j at a position >= n_sink
//
//   z_j = scale <mu', k_j> + scale^2 / 2 <k_j, S' k_j>  (cov; else the first)
//   a = softmax of z over those entries;  mean over the group
//   s_j = (a_j + eps) |v_j|  (vnorm; else a_j)
//
// and +infinity for entries at positions below n_sink.
//
// Cost: with cov a product of entries x head_dim x head_dim per query head;
// group_size * (entries + head_dim^2) floats of scratch, which grows to the
// largest call and is kept. Thread-compatible.
class ExpectedAttentionScorer {
 public:
  explicit ExpectedAttentionScorer(const ModelLayout& layout);

  void Score(const KvArena& arena, const ScoreBatch& batch);

 private:
  // logits_[g * stride + j] = z_j of query head g of the group.
  void Logits(const KvArena& arena, const ScoreBatch& batch,
              std::span<const FutureQueries> futures,
              std::span<const SlotIndex> slots, int64_t stride);

  const ModelLayout layout_;
  AlignedFloats packed_;            // one tile
  std::vector<const float*> rows_;  // of one covariance
  std::vector<float> logits_;       // [group_size, stride]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_EXPECTED_ATTENTION_H_
