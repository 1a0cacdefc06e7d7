// Runs snapkv's pooling on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_POOL_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_POOL_RUNNER_H_

#include <string>

#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/window_results.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

template <typename T>
class PoolRunner {
 public:
  // The case is borrowed.
  explicit PoolRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what went wrong, or "".
  std::string Run(const ScorerSpec& scorer,
                  const SharedVector<float>& attention,
                  const WindowResultOptions& options) {
    auto params =
        results_.template Poisoned<PoolParams>(test_, attention, options);
    params.window = scorer.window;
    params.max_pool = scorer.pool == PoolKind::kMax;
    params.kernel = scorer.kernel;
    params.pool_first = scorer.order == PoolOrder::kKvPress;
    params.group_max = scorer.group == GroupReduce::kMax;
    return RunKernel(options.schedule, &DeviceRuntime::PoolWindow, params)
        .error;
  }

  const SharedVector<float>& scores() const { return results_.scores(); }
  const SharedVector<float>& products() const { return results_.products(); }

 private:
  EntryCase<T>& test_;
  WindowResults results_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_POOL_RUNNER_H_
