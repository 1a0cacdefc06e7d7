// Selection by score: FindTopCut and TopK.
#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

#include "blockmgr/base/check.h"
#include "blockmgr/eviction/score_order.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

namespace {

// The digits of a key, from the top: 11, 11 and 10 bits. Three passes are
// enough then, and two tables of counts fit into an L1 cache.
struct Digit {
  int shift;
  uint32_t mask;
};
constexpr std::array<Digit, 3> kDigits = {
    {{21, 0x7FFu}, {10, 0x7FFu}, {0, 0x3FFu}}};

}  // namespace

TopCut FindTopCut(std::span<const uint32_t> keys, int64_t k) {
  BM_CHECK(k > 0);
  BM_CHECK(k <= static_cast<int64_t>(keys.size()));
  BM_CHECK(keys.size() < UINT32_MAX);
  // The threshold is found digit by digit. Of the keys that share its digits so
  // far, `wanted` belong to the k best.
  uint32_t threshold = 0;
  uint32_t known = 0;  // mask of the digits found
  int64_t wanted = k;
  // Neighbours often have the same digit. With two tables, one increment need
  // not wait for the one before it.
  std::array<std::array<uint32_t, 2048>, 2> counts;
  for (const Digit& digit : kDigits) {
    counts[0].fill(0);
    counts[1].fill(0);
    size_t i = 0;
    if (known == 0) {
      for (; i + 1 < keys.size(); i += 2) {
        ++counts[0][keys[i] >> digit.shift];
        ++counts[1][keys[i + 1] >> digit.shift];
      }
    }
    for (; i < keys.size(); ++i) {
      if ((keys[i] & known) == threshold) {
        ++counts[0][(keys[i] >> digit.shift) & digit.mask];
      }
    }
    uint32_t value = digit.mask;
    const auto count = [&] {
      return int64_t{counts[0][value]} + counts[1][value];
    };
    for (; count() < wanted; --value) wanted -= count();
    threshold |= value << digit.shift;
    known |= digit.mask << digit.shift;
  }
  return {threshold, wanted};
}

CutCounts CountAtCut(std::span<const uint32_t> keys, const TopCut& cut) {
  CutCounts counts;
  for (const uint32_t key : keys) {
    counts.above += key > cut.threshold ? 1 : 0;
    counts.equal += key == cut.threshold ? 1 : 0;
  }
  return counts;
}

void AppendTop(std::span<const uint32_t> keys, int64_t k, int32_t first_rank,
               std::vector<int32_t>* ranks) {
  if (k <= 0) return;
  const size_t size = keys.size();
  size_t end = ranks->size();
  if (k >= std::ssize(keys)) {
    ranks->resize(end + size);
    std::iota(ranks->begin() + static_cast<ptrdiff_t>(end), ranks->end(),
              first_rank);
    return;
  }
  const TopCut cut = FindTopCut(keys, k);
  int64_t num_equal = cut.num_equal;
  // Every rank is written. The next one overwrites it if it was not taken. The
  // array has one place more than k, for the ranks behind the last one taken.
  ranks->resize(end + static_cast<size_t>(k) + 1);
  int32_t* out = ranks->data();
  for (size_t i = 0; i < size; ++i) {
    const uint32_t key = keys[i];
    const bool equal = key == cut.threshold;
    const bool take = key > cut.threshold || (equal && num_equal > 0);
    out[end] = first_rank + static_cast<int32_t>(i);
    num_equal -= equal ? 1 : 0;
    end += take ? 1 : 0;
  }
  ranks->pop_back();
}

void TopK(std::span<const float> scores, int64_t k, std::vector<int32_t>* out) {
  std::vector<uint32_t> keys(scores.size());
  std::transform(scores.begin(), scores.end(), keys.begin(), ScoreKey);
  out->clear();
  AppendTop(keys, k, 0, out);
}

}  // namespace blockmgr
