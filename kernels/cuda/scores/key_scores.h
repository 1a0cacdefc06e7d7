// Scores from the keys alone: keydiff (2504.15364) and knorm (2406.11430), as
// kernels/cpu/key_scores.h defines them.
//
// There are three kernels: the sums of keys per split of kRowSplitEntries, the
// anchor, and the comparison. knorm needs only the comparison. The first and
// the last kernel read K once each. Sums have a fixed order, in fp32 inside a
// split and in fp64 over splits. The kernels are deterministic, and the scores
// of a list depend on its own keys alone. The sums have 1 / 128 of the bytes of
// K. One CTA adds up the sums of a list, with several threads per channel.
//
// anchor=median computes lengths of keys instead of sums, then finds the
// medians of all channels digit by digit. K is read five more times, by one CTA
// for eight channels of a list, which counts in its shared memory. The medians
// are exact: they are the medians of the normalized keys in fp32.
#ifndef KERNELS_CUDA_SCORES_KEY_SCORES_H_
#define KERNELS_CUDA_SCORES_KEY_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// A length below its floor counts as the floor (the method's reference code).
inline constexpr float kKeyAnchorFloor = 1e-12f;
inline constexpr float kKeyCosineFloor = 1e-8f;

// kPairwise is the mean cosine with every key, the key itself included.
enum class KeyAnchor : int32_t { kNormalized, kRaw, kPairwise, kMedian };
enum class KeyMetric : int32_t { kCosine, kDot, kEuclidean, kNorm };

struct KeyScoreParams {
  EntryLists entries;
  PagedPool pool;
  KeyAnchor anchor = KeyAnchor::kNormalized;
  KeyMetric metric = KeyMetric::kCosine;  // knorm is kNorm, without an anchor
  // The workspace. The median needs the second and third array, the other
  // anchors need the first.
  float* partial_sums = nullptr;  // [row_splits.count, head_dim]
  float* lengths = nullptr;       // [offsets[num_lists]]
  float* medians = nullptr;       // [lists, head_dim]
  // The mean or median, then the length that cosines are divided by.
  float* anchors = nullptr;  // [lists, head_dim + 1]
  float* scores = nullptr;   // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_KEY_SCORES_H_
