// Scores from the keys alone: keydiff (2504.15364) and knorm (2406.11430), as
// kernels/cpu/key_scores.h states them.
//
// Three kernels: sums of keys per split of kRowSplitEntries, the anchor, then
// the comparison; knorm needs the last one only. K is read once by the first
// and once by the last kernel. Sums run in a fixed order, in fp32 inside a
// split and in fp64 over splits: deterministic, and a list's scores depend on
// its own keys alone. The sums have 1 / 128 of the bytes of K, and one CTA adds
// up those of a list, a channel by several threads.
//
// anchor=median: lengths of keys instead of sums, then the medians of all
// channels, found digit by digit: K is read five times more, by one CTA for
// eight channels of a list, and counted in its shared memory. They are exact:
// those of the normalized keys as fp32 has them.
#ifndef KERNELS_CUDA_SCORES_KEY_SCORES_H_
#define KERNELS_CUDA_SCORES_KEY_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// Below these a length counts as this long (the method's reference code).
inline constexpr float kKeyAnchorFloor = 1e-12f;
inline constexpr float kKeyCosineFloor = 1e-8f;

// kPairwise: the mean cosine with every key, itself included.
enum class KeyAnchor : int32_t { kNormalized, kRaw, kPairwise, kMedian };
enum class KeyMetric : int32_t { kCosine, kDot, kEuclidean, kNorm };

struct KeyScoreParams {
  EntryLists entries;
  PagedPool pool;
  KeyAnchor anchor = KeyAnchor::kNormalized;
  KeyMetric metric = KeyMetric::kCosine;  // kNorm: knorm, no anchor
  // Workspace: of the median the second and third, else the first.
  float* partial_sums = nullptr;  // [row_splits.count, head_dim]
  float* lengths = nullptr;       // [offsets[num_lists]]
  float* medians = nullptr;       // [lists, head_dim]
  // The mean or median, and then the length that cosines are divided by.
  float* anchors = nullptr;  // [lists, head_dim + 1]
  float* scores = nullptr;   // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_KEY_SCORES_H_
