// Scores from the keys alone: keydiff, knorm.
#ifndef KERNELS_CPU_KEY_SCORES_H_
#define KERNELS_CPU_KEY_SCORES_H_

#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_scorer.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"

namespace blockmgr {

// KeyDiff (2504.15364): s[j] = -similarity(k_j, anchor of all given entries).
//
//   anchor=normalized  the mean of k / max(|k|, 1e-12)
//   anchor=median      the median of k / max(|k|, 1e-12), per channel; of an
//                      even number of keys, the mean of the middle two
//   anchor=raw         the mean of k
//   anchor=pairwise    every key in turn: s[j] is minus the mean cosine of k_j
//                      and all keys, k_j included. The sum of the cosines is
//                      one product, so the time is linear.
//   metric=cosine      <k, a> / (max(|k|, 1e-8) max(|a|, 1e-8))
//   metric=dot         <k, a>
//   metric=euclidean   -|k - a|
//
// The scores of a head depend on its ordered keys alone. A NaN in one key makes
// all scores of the head NaN.
//
// Cost: reads K twice. anchor=median reads K head_dim / 8 more times and holds
// 8 * entries floats. Scratch grows to the largest call and is kept.
class KeyDiffScorer final : public CpuScorer {
 public:
  explicit KeyDiffScorer(const ModelLayout& layout);

  void Score(const KvArena& arena, const ScoreBatch& batch) override;

 private:
  // Sets norms_[j] = |k_j|.
  void Norms(const KvArena& arena, std::span<const SlotIndex> slots);
  // Sets anchor_ to the mean of k_j. With `normalize`, sets anchor_ to the mean
  // of k_j / max(|k_j|, floor) and fills norms_.
  void MeanKey(const KvArena& arena, std::span<const SlotIndex> slots,
               bool normalize, float floor);
  // Sets anchor_ to the median of k_j / max(|k_j|, floor) and fills norms_.
  void MedianKey(const KvArena& arena, std::span<const SlotIndex> slots,
                 float floor);
  // Sets scores[j] = -similarity(k_j, anchor_).
  void Compare(const KvArena& arena, const ScorerSpec& scorer,
               const HeadEntries& entries, std::span<float> scores);

  std::vector<double> anchor_;      // [head_dim]
  std::vector<float> anchor_f32_;   // [head_dim]
  std::vector<float> partial_sum_;  // [head_dim]
  std::vector<float> norms_;        // [entries of a head], + kRowGroup
  std::vector<float> channels_;     // [kMedianChannels, entries of a head]
};

// L2 norm (2406.11430): s[j] = -|k_j|. A NaN in a key makes its own score NaN.
// Cost: reads K once.
class KnormScorer final : public CpuScorer {
 public:
  explicit KnormScorer(const ModelLayout& /*layout*/) {}

  void Score(const KvArena& arena, const ScoreBatch& batch) override;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_KEY_SCORES_H_
