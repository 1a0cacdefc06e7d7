// Runs scores from keys under the emulator on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_KEY_RUNNER_H_
#define TESTS_KERNELS_CUDA_KEY_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/key_scores.cuh"
#include "kernels/cuda/key_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/entry_cases.h"

namespace blockmgr {

template <typename T>
class KeyRunner {
 public:
  // The case is borrowed.
  explicit KeyRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what the emulator found, or "".
  std::string Run(KeyAnchor anchor, KeyMetric metric,
                  const simt::Schedule& schedule) {
    const int32_t head_dim = test_.shape().head_dim;
    return head_dim == 64    ? RunDim<64>(anchor, metric, schedule)
           : head_dim == 128 ? RunDim<128>(anchor, metric, schedule)
                             : RunDim<256>(anchor, metric, schedule);
  }

  const std::vector<float>& scores() const { return scores_; }

 private:
  template <int kDim>
  std::string RunDim(KeyAnchor anchor, KeyMetric metric,
                     const simt::Schedule& schedule) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const uint32_t lists = static_cast<uint32_t>(test_.num_lists());
    KeyScoreParams params;
    params.entries = test_.Lists();
    params.pool = test_.cache().Pool();
    params.anchor = anchor;
    params.metric = metric;
    params.num_splits = EntrySplits(test_.LongestList());
    const uint32_t splits = static_cast<uint32_t>(params.num_splits);
    std::vector<float> partial_sums(int64_t{lists} * splits * kDim, kNan);
    std::vector<float> anchors(int64_t{lists} * (kDim + 1), kNan);
    scores_.assign(test_.num_entries(), kNan);
    params.partial_sums = partial_sums.data();
    params.anchors = anchors.data();
    params.scores = scores_.data();
    simt::LaunchShape shape = {.grid = {splits, lists},
                               .threads = kKeyThreads,
                               .shared_bytes = KeyLanes<T, kDim>::kSharedBytes};
    if (metric != KeyMetric::kNorm) {
      std::string error =
          simt::Launch(schedule, shape, SumKeys<T, kDim>, params).error;
      if (!error.empty()) return error;
      shape.grid = {lists};
      shape.shared_bytes = 16;
      error = simt::Launch(schedule, shape, FinishAnchors<kDim>, params).error;
      if (!error.empty()) return error;
    }
    shape.grid = {splits, lists};
    shape.shared_bytes = 0;
    return simt::Launch(schedule, shape, CompareKeys<T, kDim>, params).error;
  }

  EntryCase<T>& test_;
  std::vector<float> scores_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_KEY_RUNNER_H_
