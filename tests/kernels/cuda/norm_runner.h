// Runs sizes of projected values under the emulator on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_NORM_RUNNER_H_
#define TESTS_KERNELS_CUDA_NORM_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/simt.h"
#include "kernels/cuda/value_norm_scores.cuh"
#include "kernels/cuda/value_norm_scores.h"
#include "tests/kernels/cuda/entry_cases.h"

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

  // Returns what the emulator found, or "".
  std::string Run(const NormOptions& options) {
    const int32_t head_dim = test_.shape().head_dim;
    return head_dim == 64    ? RunDim<64>(options)
           : head_dim == 128 ? RunDim<128>(options)
                             : RunDim<256>(options);
  }

  int64_t model_dim() const { return model_dim_; }
  const std::vector<T>& projection() const { return projection_; }
  const std::vector<float>& norms() const { return norms_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  template <int kDim>
  std::string RunDim(const NormOptions& options) {
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
    const uint32_t blocks = (test_.LongestList() + kNormRows - 1) / kNormRows;
    const simt::LaunchReport report = simt::Launch(
        options.schedule,
        {.grid = {blocks, static_cast<uint32_t>(test_.num_lists())},
         .threads = kNormThreads,
         .shared_bytes = NormShape<T, kDim>::kSharedBytes},
        ValueNorms<T, kDim>, params);
    bank_conflicts_ = report.bank_conflicts;
    return report.error;
  }

  EntryCase<T>& test_;
  int64_t model_dim_;
  std::vector<T> projection_;
  std::vector<float> norms_;
  int64_t bank_conflicts_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_NORM_RUNNER_H_
