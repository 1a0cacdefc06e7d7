// SnapKV's reduction of attention to scores in float64, from the method's text.
#ifndef TESTS_TESTING_NAIVE_SNAPKV_H_
#define TESTS_TESTING_NAIVE_SNAPKV_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// 1-d pooling with stride 1: max over what is there, or the sum over what is
// there divided by the kernel.
inline std::vector<double> NaivePool(const ScorerSpec& scorer,
                                     const std::vector<double>& in) {
  const int64_t n = std::ssize(in);
  std::vector<double> out;
  for (int64_t j = 0; j < n; ++j) {
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0.0;
    for (int64_t k = j - scorer.kernel / 2; k <= j + scorer.kernel / 2; ++k) {
      if (k < 0 || k >= n) continue;
      max = std::max(max, in[k]);
      sum += in[k];
    }
    out.push_back(scorer.pool == PoolKind::kMax ? max : sum / scorer.kernel);
  }
  return out;
}

// Returns the scores of a KV head's entries. `attention` is that of the query
// heads of its group, [group_size, entries].
inline std::vector<double> NaiveSnapKv(
    const ScorerSpec& scorer, std::vector<std::vector<double>> attention) {
  const bool pools_first = scorer.order == PoolOrder::kKvPress;
  std::vector<double> scores;
  for (std::vector<double>& row : attention) {
    if (pools_first) row = NaivePool(scorer, row);
  }
  for (size_t j = 0; j < attention[0].size(); ++j) {
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0.0;
    for (const std::vector<double>& row : attention) {
      max = std::max(max, row[j]);
      sum += row[j];
    }
    scores.push_back(scorer.group == GroupReduce::kMax
                         ? max
                         : sum / static_cast<double>(attention.size()));
  }
  return pools_first ? scores : NaivePool(scorer, scores);
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_NAIVE_SNAPKV_H_
