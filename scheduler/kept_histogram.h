// KeptHistogram: exact quantiles of many small counts (the entries that heads
// keep in evictions).
#ifndef SCHEDULER_KEPT_HISTOGRAM_H_
#define SCHEDULER_KEPT_HISTOGRAM_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace blockmgr {

// The histogram has one counter per value, so its memory does not grow with the
// number of samples. Add is O(values). Quantile is O(largest value), and is
// meant for statistics calls.
class KeptHistogram {
 public:
  void Add(std::span<const int32_t> values) {
    for (const int32_t value : values) {
      if (value >= std::ssize(counts_)) counts_.resize(value + 1, 0);
      ++counts_[value];
    }
    num_samples_ += values.size();
  }

  void Clear() {
    std::fill(counts_.begin(), counts_.end(), 0);
    num_samples_ = 0;
  }

  // Returns the smallest value with at least max(1, fraction * samples) samples
  // at or below it. Returns 0 if there are no samples.
  int32_t Quantile(double fraction) const {
    uint64_t below = 0;
    for (size_t value = 0; value < counts_.size(); ++value) {
      below += counts_[value];
      if (below > 0 && static_cast<double>(below) >=
                           fraction * static_cast<double>(num_samples_)) {
        return static_cast<int32_t>(value);
      }
    }
    return 0;
  }

 private:
  std::vector<uint64_t> counts_;  // indexed by value
  uint64_t num_samples_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_KEPT_HISTOGRAM_H_
