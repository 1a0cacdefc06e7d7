// Runs sizes of projected values on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_NORM_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_NORM_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct NormOptions {
  bool l2 = false;
  bool per_query_head = false;
  simt::Schedule schedule = {};
};

template <typename T>
class NormRunner {
 public:
  // The case is borrowed; its projection is random.
  NormRunner(EntryCase<T>* test, int64_t model_dim)
      : test_(*test), model_dim_(model_dim) {
    const int64_t size = int64_t{test_.cache().num_q_heads()} *
                         test_.shape().head_dim * model_dim;
    for (int64_t i = 0; i < size; ++i) {
      projection_.push_back(
          simt::FromFloat<T>(0.1f * RandomFloat(test_.cache().rng())));
    }
  }

  // Returns what went wrong, or "".
  std::string Run(const NormOptions& options) {
    const int32_t group_size = test_.shape().group_size;
    norms_.assign(
        test_.num_entries() * (options.per_query_head ? group_size : 1),
        std::numeric_limits<float>::quiet_NaN());
    ValueNormParams params;
    params.entries = test_.Lists();
    params.pool = test_.cache().Pool();
    params.projection = projection_.data();
    params.model_dim = model_dim_;
    params.group_size = group_size;
    params.l2 = options.l2;
    params.per_query_head = options.per_query_head;
    params.norms = norms_.data();
    const KernelReport report =
        RunKernel(options.schedule, &DeviceRuntime::ValueNorms, params,
                  test_.cache().row_shape());
    bank_conflicts_ = report.bank_conflicts;
    return report.error;
  }

  int64_t model_dim() const { return model_dim_; }
  const SharedVector<T>& projection() const { return projection_; }
  const SharedVector<float>& norms() const { return norms_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  EntryCase<T>& test_;
  int64_t model_dim_;
  SharedVector<T> projection_;
  SharedVector<float> norms_;
  int64_t bank_conflicts_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_NORM_RUNNER_H_
