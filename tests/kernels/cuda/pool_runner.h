// Runs snapkv's pooling under the emulator on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_POOL_RUNNER_H_
#define TESTS_KERNELS_CUDA_POOL_RUNNER_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/pooled_scores.cuh"
#include "kernels/cuda/pooled_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/entry_cases.h"

namespace blockmgr {

struct PoolOptions {
  std::span<const float> norms = {};  // of products; empty: none
  float eps = 0.0f;
  simt::Schedule schedule = {};
};

template <typename T>
class PoolRunner {
 public:
  // The case is borrowed.
  explicit PoolRunner(EntryCase<T>* test) : test_(*test) {}

  // Returns what the emulator found, or "".
  std::string Run(const ScorerSpec& scorer, const std::vector<float>& attention,
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
        options.norms.empty() ? nullptr : options.norms.data();
    params.product_eps = options.eps;
    params.products = products_.data();
    const uint32_t blocks =
        (test_.LongestList() + kPoolThreads - 1) / kPoolThreads;
    return simt::Launch(
               options.schedule,
               {.grid = {blocks, static_cast<uint32_t>(test_.num_lists())},
                .threads = kPoolThreads,
                .shared_bytes = kPoolSharedBytes},
               PoolWindowScores, params)
        .error;
  }

  const std::vector<float>& scores() const { return scores_; }
  const std::vector<float>& products() const { return products_; }

 private:
  EntryCase<T>& test_;
  std::vector<float> scores_;
  std::vector<float> products_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_POOL_RUNNER_H_
