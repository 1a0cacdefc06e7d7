// Selection by score: FindTopCut and TopK.
#include <array>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/score_order.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

TopCut FindTopCut(std::span<const uint32_t> keys, int64_t k) {
  BM_CHECK(k > 0);
  BM_CHECK(k <= static_cast<int64_t>(keys.size()));
  // Digit by digit from the top: of the keys that share the threshold's digits
  // so far, `wanted` belong to the k best.
  uint32_t threshold = 0;
  uint32_t known = 0;  // mask of the digits found
  int64_t wanted = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<int64_t, 256> counts = {};
    for (const uint32_t key : keys) {
      if ((key & known) == threshold) ++counts[(key >> shift) & 0xFFu];
    }
    uint32_t digit = 255;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    threshold |= digit << shift;
    known |= 0xFFu << shift;
  }
  return {threshold, wanted};
}

void TopK(std::span<const float> scores, int64_t k, std::vector<int32_t>* out) {
  std::vector<uint32_t> keys;
  keys.reserve(scores.size());
  for (const float score : scores) keys.push_back(ScoreKey(score));
  out->clear();
  ForEachTop(keys, k,
             [&](int64_t rank) { out->push_back(static_cast<int32_t>(rank)); });
}

}  // namespace blockmgr
