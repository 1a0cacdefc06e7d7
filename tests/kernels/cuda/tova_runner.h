// Runs tova's scores on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_TOVA_RUNNER_H_
#define TESTS_KERNELS_CUDA_TOVA_RUNNER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cuda/simt.h"
#include "kernels/cuda/tova_scores.h"
#include "tests/kernels/cuda/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct TovaOptions {
  const SharedVector<float>* norms = nullptr;  // of products
  float eps = 0.0f;
  simt::Schedule schedule = {};
};

template <typename T>
class TovaRunner {
 public:
  // The case is borrowed.
  explicit TovaRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what went wrong, or "".
  std::string Run(const SharedVector<float>& attention,
                  const TovaOptions& options) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    scores_.assign(test_.num_entries(), kNan);
    products_.assign(test_.num_entries(), kNan);
    TovaParams params;
    params.entries = test_.Lists();
    params.lengths = test_.lengths().data();
    params.group_size = test_.shape().group_size;
    params.attention = attention.data();
    params.scores = scores_.data();
    params.q_head_norms =
        options.norms == nullptr ? nullptr : options.norms->data();
    params.product_eps = options.eps;
    params.products = products_.data();
    const int32_t longest_sequence = *std::ranges::max_element(test_.lengths());
    return RunKernels(options.schedule,
                      [&](DeviceRuntime& device) {
                        device.Tova(params, longest_sequence);
                      })
        .error;
  }

  const SharedVector<float>& scores() const { return scores_; }
  const SharedVector<float>& products() const { return products_; }

 private:
  EntryCase<T>& test_;
  SharedVector<float> scores_;
  SharedVector<float> products_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_TOVA_RUNNER_H_
