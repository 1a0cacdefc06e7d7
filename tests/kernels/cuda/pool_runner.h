// Runs snapkv's pooling on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_POOL_RUNNER_H_
#define TESTS_KERNELS_CUDA_POOL_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>

#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/pooled_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct PoolOptions {
  const SharedVector<float>* norms = nullptr;  // of products
  float eps = 0.0f;
  simt::Schedule schedule = {};
};

template <typename T>
class PoolRunner {
 public:
  // The case is borrowed.
  explicit PoolRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what went wrong, or "".
  std::string Run(const ScorerSpec& scorer,
                  const SharedVector<float>& attention,
                  const PoolOptions& options) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    scores_.assign(test_.num_entries(), kNan);
    products_.assign(test_.num_entries(), kNan);
    PoolParams params;
    params.entries = test_.Lists();
    params.lengths = test_.lengths().data();
    params.window = scorer.window;
    params.group_size = test_.shape().group_size;
    params.attention = attention.data();
    params.max_pool = scorer.pool == PoolKind::kMax;
    params.kernel = scorer.kernel;
    params.pool_first = scorer.order == PoolOrder::kKvPress;
    params.group_max = scorer.group == GroupReduce::kMax;
    params.scores = scores_.data();
    params.q_head_norms =
        options.norms == nullptr ? nullptr : options.norms->data();
    params.product_eps = options.eps;
    params.products = products_.data();
    return RunKernels(options.schedule,
                      [&](DeviceRuntime& device) {
                        device.PoolWindow(params, test_.LongestList());
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

#endif  // TESTS_KERNELS_CUDA_POOL_RUNNER_H_
