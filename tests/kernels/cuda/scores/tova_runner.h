// Runs tova's scores on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_TOVA_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_TOVA_RUNNER_H_

#include <cstdint>
#include <string>

#include "kernels/cuda/scores/tova_scores.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/window_results.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

template <typename T>
class TovaRunner {
 public:
  // The case is borrowed.
  explicit TovaRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what went wrong, or "".
  std::string Run(const SharedVector<float>& attention,
                  const WindowResultOptions& options) {
    auto params =
        results_.template Poisoned<TovaParams>(test_, attention, options);
    SharedVector<int64_t> tokens = {0};
    for (const int32_t length : test_.lengths()) {
      tokens.push_back(tokens.back() + length);
    }
    const auto tiles = SharedSplits(tokens, kTovaThreads);
    params.tiles = {tiles.data(), tiles.back()};
    return RunKernel(options.schedule, &DeviceRuntime::Tova, params).error;
  }

  const SharedVector<float>& scores() const { return results_.scores(); }
  const SharedVector<float>& products() const { return results_.products(); }

 private:
  EntryCase<T>& test_;
  WindowResults results_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_TOVA_RUNNER_H_
