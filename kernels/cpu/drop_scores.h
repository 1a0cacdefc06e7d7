// Scores from what the output of attention loses with an entry: dropkv.
#ifndef KERNELS_CPU_DROP_SCORES_H_
#define KERNELS_CPU_DROP_SCORES_H_

#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"

namespace blockmgr {

// DropKV. Let p_ij be the attention that query i pays entry j, and o_i the
// query's output, the sum of p_ij v_j. Without entry j alone the output would
// be o_i - p_ij / (1 - p_ij) * (v_j - o_i). The score of an entry before the
// window is the sum, over the queries of the window, of the square of this
// change:
//
//   s_j = sum over i of (p_ij / (1 - p_ij))^2 * |v_j - o_i|^2
//
// It is averaged over the group, then over `kernel` positions. 1 - p_ij counts
// as at least 10^-6.
//
// Cost: as SnapKV, and twice that for the values. Scratch: the values of one
// head in fp32, and group_size + 1 floats per entry. Thread-compatible.
class DropKvScorer final : public CpuScorer {
 public:
  explicit DropKvScorer(const ModelLayout& layout);
  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  // Reads the values of the entries into values_.
  void TransposeValues(const KvArena& arena, const HeadEntries& entries);
  // Turns logits into p / (1 - p), and sets output_ to o.
  void Attend(std::span<float> logits);
  // Adds one query's part to the scores of the first entries.
  void AddChanges(std::span<const float> ratios, std::span<float> sums) const;

  const ModelLayout layout_;
  AttentionWeights weights_;
  std::vector<float> values_;        // [tiles, head_dim, kTileRows]
  std::vector<float> output_lanes_;  // [head_dim, kTileRows]
  std::vector<float> output_;        // [head_dim]
  std::vector<float> changes_;       // [group_size, num_past]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_DROP_SCORES_H_
