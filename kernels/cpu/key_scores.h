// Scores from the keys alone: keydiff, knorm.
#ifndef KERNELS_CPU_KEY_SCORES_H_
#define KERNELS_CPU_KEY_SCORES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cpu/entry_tiles.h"
#include "kernels/cpu/kv_arena.h"

namespace blockmgr {

// KeyScorer compares the keys of one head with each other.
//
// A head's scores depend on its ordered keys alone. A NaN in one of them is in
// every score of the head (keydiff), or in its own (knorm).
//
// Cost: keydiff reads K twice (anchor=median: head_dim / 8 times more, and
// holds 8 * entries floats), knorm once. Scratch grows to the largest call and
// is kept. Thread-compatible.
class KeyScorer {
 public:
  explicit KeyScorer(const ModelLayout& layout);

  // KeyDiff (2504.15364): s[j] = -similarity(k_j, anchor of all entries given).
  // anchor: normalized: mean of k / max(|k|, 1e-12); median: of the same, per
  // channel, of an even number the mean of the middle two; raw: mean of k.
  // metric: cosine: <k, a> / (max(|k|, 1e-8) max(|a|, 1e-8)); dot: <k, a>;
  // euclidean: -|k - a|. anchor=pairwise is the mean cosine of k_j and every
  // key, itself included, in linear time: the cosines' sum is one product.
  void KeyDiff(const KvArena& arena, const ScoreBatch& batch);
  // Knorm (2406.11430): s[j] = -|k_j|.
  void Knorm(const KvArena& arena, const ScoreBatch& batch);

 private:
  // norms_[j] = |k_j|
  void Norms(const KvArena& arena, std::span<const SlotIndex> slots);
  // anchor_ = mean of k_j, or of k_j / max(|k_j|, floor), which fills norms_.
  void MeanKey(const KvArena& arena, std::span<const SlotIndex> slots,
               bool normalize, float floor);
  // anchor_ = median of k_j / max(|k_j|, floor), which fills norms_.
  void MedianKey(const KvArena& arena, std::span<const SlotIndex> slots,
                 float floor);
  // scores[j] = -similarity(k_j, anchor_)
  void Compare(const KvArena& arena, const ScorerSpec& scorer,
               const HeadEntries& entries, std::span<float> scores);

  std::vector<double> anchor_;      // [head_dim]
  std::vector<float> anchor_f32_;   // [head_dim]
  std::vector<float> partial_sum_;  // [head_dim]
  std::vector<float> norms_;        // [entries of a head], + kRowGroup
  std::vector<float> channels_;     // [kMedianChannels, entries of a head]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_KEY_SCORES_H_
