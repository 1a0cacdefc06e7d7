// Runs scores from keys on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>

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
    return RunKernels(schedule,
                      [&](DeviceRuntime& device) {
                        device.KeyScores(params, test_.cache().row_shape());
                      })
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

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_KEY_RUNNER_H_
