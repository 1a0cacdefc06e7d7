// Runs scores from keys on an EntryCase, and the same in float64.
#ifndef TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

template <typename T>
class KeyRunner {
 public:
  // The case is borrowed.
  explicit KeyRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what went wrong, or "".
  std::string Run(KeyAnchor anchor, KeyMetric metric,
                  const simt::Schedule& schedule) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const int64_t lists = test_.num_lists();
    const int32_t head_dim = test_.shape().head_dim;
    KeyScoreParams params;
    params.entries = test_.Lists();
    params.pool = test_.cache().Pool();
    params.anchor = anchor;
    params.metric = metric;
    SharedVector<float> partial_sums(
        int64_t{params.entries.row_splits.count} * head_dim, kNan);
    lengths_.assign(test_.num_entries(), kNan);
    medians_.assign(lists * head_dim, kNan);
    SharedVector<float> anchors(lists * (head_dim + 1), kNan);
    scores_.assign(test_.num_entries(), kNan);
    params.partial_sums = partial_sums.data();
    params.lengths = lengths_.data();
    params.medians = medians_.data();
    params.anchors = anchors.data();
    params.scores = scores_.data();
    return RunKernel(schedule, &DeviceRuntime::KeyScores, params,
                     test_.cache().row_shape())
        .error;
  }

  const SharedVector<float>& scores() const { return scores_; }
  // Of a run with the median.
  const SharedVector<float>& lengths() const { return lengths_; }
  const SharedVector<float>& medians() const { return medians_; }

 private:
  EntryCase<T>& test_;
  SharedVector<float> scores_;
  SharedVector<float> lengths_;
  SharedVector<float> medians_;
};

// Scores of a list from the definition.
template <typename T>
std::vector<double> NaiveKeyScores(EntryCase<T>& test, int32_t list,
                                   KeyAnchor anchor, KeyMetric metric) {
  const int32_t dim = test.shape().head_dim;
  const int32_t size = test.size(list);
  std::vector<std::vector<double>> keys(size);
  std::vector<double> lengths(size);
  std::vector<std::vector<double>> channels(dim);
  for (int32_t e = 0; e < size; ++e) {
    for (int32_t i = 0; i < dim; ++i) {
      keys[e].push_back(
          test.cache().Value(test.slot(test.offset(list) + e), false, i));
      lengths[e] += keys[e][i] * keys[e][i];
    }
    lengths[e] = std::sqrt(lengths[e]);
    const double by =
        anchor == KeyAnchor::kRaw ? 1.0 : std::max(lengths[e], 1e-12);
    for (int32_t i = 0; i < dim; ++i) channels[i].push_back(keys[e][i] / by);
  }
  std::vector<double> center;
  double center_length = 0.0;
  for (std::vector<double>& channel : channels) {
    if (anchor == KeyAnchor::kMedian && size > 0) {
      std::ranges::sort(channel);
      center.push_back((channel[(size - 1) / 2] + channel[size / 2]) / 2.0);
    } else {
      center.push_back(std::accumulate(channel.begin(), channel.end(), 0.0) /
                       size);
    }
    center_length += center.back() * center.back();
  }
  center_length =
      anchor == KeyAnchor::kPairwise ? 1.0 : std::sqrt(center_length);
  std::vector<double> scores;
  for (int32_t e = 0; e < size; ++e) {
    double dot = 0.0;
    double distance = 0.0;
    for (int32_t i = 0; i < dim; ++i) {
      dot += keys[e][i] * center[i];
      distance += std::pow(keys[e][i] - center[i], 2);
    }
    switch (metric) {
      case KeyMetric::kCosine:
        scores.push_back(-dot / (std::max(lengths[e], 1e-8) * center_length));
        break;
      case KeyMetric::kDot:
        scores.push_back(-dot);
        break;
      case KeyMetric::kEuclidean:
        scores.push_back(std::sqrt(distance));
        break;
      case KeyMetric::kNorm:
        scores.push_back(-lengths[e]);
        break;
    }
  }
  return scores;
}

// Runs, and expects naive scores.
template <typename T>
void ExpectRunMatches(EntryCase<T>& test, KeyRunner<T>& runner,
                      KeyAnchor anchor, KeyMetric metric) {
  ASSERT_EQ(runner.Run(anchor, metric, {}), "");
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    const std::vector<double> expected =
        NaiveKeyScores(test, list, anchor, metric);
    double error = 0.0;
    double norm = 0.0;
    for (int32_t e = 0; e < test.size(list); ++e) {
      error +=
          std::pow(runner.scores()[test.offset(list) + e] - expected[e], 2);
      norm += std::pow(expected[e], 2);
    }
    // fp32 throughout; a list of one entry is its own anchor.
    EXPECT_TRUE(std::sqrt(error) <= 1e-5 * std::sqrt(norm) + 1e-6)
        << "list " << list << ": " << std::sqrt(error / norm);
  }
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_
