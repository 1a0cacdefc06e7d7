// The total order of scores, and the cut between the k best and the rest.
#ifndef BLOCKMGR_EVICTION_SCORE_ORDER_H_
#define BLOCKMGR_EVICTION_SCORE_ORDER_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace blockmgr {

// A key that orders as scores do: larger is better, NaN of any sign and payload
// above +inf, -0 equal to +0. Integers, so no comparison can be undefined.
inline uint32_t ScoreKey(float score) {
  if (std::isnan(score)) return UINT32_MAX;
  // + 0.0f turns -0 into +0.
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  constexpr uint32_t kSign = 0x80000000u;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// The k best of a list of keys, ties to the lower index: every key above
// `threshold` and the first num_equal of those equal to it.
struct TopCut {
  uint32_t threshold = 0;
  int64_t num_equal = 0;
};

// Radix select: at most four passes over `keys`, nothing allocated.
// REQUIRES: 0 < k <= keys.size().
TopCut FindTopCut(std::span<const uint32_t> keys, int64_t k);

// Calls take(index) for the k best keys, ascending by index; all if k is
// larger.
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
