// What kernels behind the weights of a window take and give: snapkv's pooling
// and tova's sums, on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_WINDOW_RESULTS_H_
#define TESTS_KERNELS_CUDA_SCORES_WINDOW_RESULTS_H_

#include <limits>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct WindowResultOptions {
  const SharedVector<float>* norms = nullptr;  // of products
  float eps = 0.0f;
  simt::Schedule schedule = {};
};

class WindowResults {
 public:
  // The params of a kernel that writes here, where all is NaN until it does.
  template <typename Params, typename T>
  Params Poisoned(const EntryCase<T>& test,
                  const SharedVector<float>& attention,
                  const WindowResultOptions& options) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    scores_.assign(test.num_entries(), kNan);
    products_.assign(test.num_entries(), kNan);
    Params params;
    params.entries = test.Lists();
    params.lengths = test.lengths().data();
    params.group_size = test.shape().group_size;
    params.attention = attention.data();
    params.scores = scores_.data();
    params.q_head_norms =
        options.norms == nullptr ? nullptr : options.norms->data();
    params.product_eps = options.eps;
    params.products = products_.data();
    return params;
  }

  const SharedVector<float>& scores() const { return scores_; }
  const SharedVector<float>& products() const { return products_; }

 private:
  SharedVector<float> scores_;
  SharedVector<float> products_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_WINDOW_RESULTS_H_
