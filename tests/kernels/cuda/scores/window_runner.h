// Runs the window's attention on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_SCORES_WINDOW_RUNNER_H_
#define TESTS_KERNELS_CUDA_SCORES_WINDOW_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

struct WindowOptions {
  bool into_sums = false;  // instead of attention
  simt::Schedule schedule = {};
};

template <typename T>
class WindowRunner {
 public:
  // The case is borrowed.
  explicit WindowRunner(EntryCase<T>* test) : test_(*test) {
    const EntryShape& shape = test_.shape();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    lse_.assign(test_.queries().size() / shape.head_dim, kNan);
    const int64_t rows = WindowRows(shape.group_size, shape.window);
    partial_stats_.assign(test_.Lists().window_splits.count * rows * 2, kNan);
  }

  // Both return what went wrong, or "".
  std::string RunStats(const WindowOptions& options) {
    std::ranges::fill(lse_, std::numeric_limits<float>::quiet_NaN());
    return Run(options, [&](DeviceRuntime& device) {
      device.WindowStats(Params(options), test_.cache().row_shape());
    });
  }
  std::string RunColumns(const WindowOptions& options) {
    attention_.assign(test_.num_entries() * test_.shape().group_size,
                      std::numeric_limits<float>::quiet_NaN());
    return Run(options, [&](DeviceRuntime& device) {
      device.WindowColumns(Params(options), test_.cache().row_shape());
    });
  }
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    for (const float x : lse_) bits.push_back(simt::FloatBits(x));
    for (const float x : attention_) bits.push_back(simt::FloatBits(x));
    return bits;
  }

  SharedVector<float>& lse() { return lse_; }
  SharedVector<float>& sums() { return sums_; }
  const SharedVector<float>& attention() const { return attention_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  WindowParams Params(const WindowOptions& options) {
    const EntryShape& shape = test_.shape();
    WindowParams params;
    params.entries = test_.Lists();
    params.pool = test_.cache().Pool();
    params.queries = test_.queries().data();
    params.window = shape.window;
    params.lengths = test_.lengths().data();
    params.group_size = shape.group_size;
    params.scale = test_.cache().scale();
    params.lse = lse_.data();
    params.partial_stats = partial_stats_.data();
    params.attention = options.into_sums ? nullptr : attention_.data();
    params.sums = options.into_sums ? sums_.data() : nullptr;
    return params;
  }
  template <typename Launch>
  std::string Run(const WindowOptions& options, const Launch& launch) {
    const KernelReport report = RunKernels(options.schedule, launch);
    bank_conflicts_ = report.bank_conflicts;
    return report.error;
  }

  EntryCase<T>& test_;
  SharedVector<float> lse_;
  SharedVector<float> partial_stats_;
  SharedVector<float> attention_;
  SharedVector<float> sums_;
  int64_t bank_conflicts_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_SCORES_WINDOW_RUNNER_H_
