// The total order of scores, and the cut between the k best and the rest.
#ifndef BLOCKMGR_EVICTION_SCORE_ORDER_H_
#define BLOCKMGR_EVICTION_SCORE_ORDER_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// Returns a key that orders as scores do: a larger key is better, NaN of any
// sign and payload is above +inf, and -0 equals +0. Keys are integers, so every
// comparison is defined. The function has no branches, so that compilers
// vectorise loops over it.
inline uint32_t ScoreKey(float score) {
  // + 0.0f turns -0 into +0.
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  constexpr uint32_t kSign = 0x80000000u;
  constexpr uint32_t kInfinity = 0x7F800000u;
  const uint32_t negative = 0u - (bits >> 31);  // all ones or none
  const uint32_t nan = (bits & ~kSign) > kInfinity ? UINT32_MAX : 0u;
  return (bits ^ (negative | kSign)) | nan;
}

// Returns the larger value, or NaN if one of the two is NaN. A poisoned score
// thus stays visible.
inline float MaxOrNaN(float a, float b) {
  return b > a || std::isnan(b) ? b : a;
}

// The cut between the k best keys of a list and the rest: the k best are every
// key above `threshold` and the first num_equal keys that equal it.
struct TopCut {
  uint32_t threshold = 0;
  int64_t num_equal = 0;
};

// Finds the cut by radix select: three passes over `keys`. Allocates nothing.
// REQUIRES: 0 < k <= keys.size().
TopCut FindTopCut(std::span<const uint32_t> keys, int64_t k);

// The number of `keys` above the cut's threshold, and equal to it. Cost: O(n).
struct CutCounts {
  int64_t above = 0;
  int64_t equal = 0;
};
CutCounts CountAtCut(std::span<const uint32_t> keys, const TopCut& cut);

// Appends first_rank + index for the k best keys, ascending. Appends all keys
// if k is larger than their number. Does what ForEachTop does, without a branch
// per key. Cost: O(n).
void AppendTop(std::span<const uint32_t> keys, int64_t k, int32_t first_rank,
               std::vector<int32_t>* ranks);

// Calls take(index) for the k best keys, ascending by index. Calls it for all
// keys if k is larger than their number.
template <typename Take>
void ForEachTop(std::span<const uint32_t> keys, int64_t k, Take take) {
  const int64_t size = static_cast<int64_t>(keys.size());
  if (k <= 0) return;
  if (k >= size) {
    for (int64_t i = 0; i < size; ++i) take(i);
    return;
  }
  TopCut cut = FindTopCut(keys, k);
  for (int64_t i = 0; i < size; ++i) {
    if (keys[i] > cut.threshold) {
      take(i);
    } else if (keys[i] == cut.threshold && cut.num_equal > 0) {
      --cut.num_equal;
      take(i);
    }
  }
}

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_SCORE_ORDER_H_
