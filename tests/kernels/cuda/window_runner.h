// Runs the window's attention under the emulator on an EntryCase.
#ifndef TESTS_KERNELS_CUDA_WINDOW_RUNNER_H_
#define TESTS_KERNELS_CUDA_WINDOW_RUNNER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/simt.h"
#include "kernels/cuda/window_kernels.cuh"
#include "kernels/cuda/window_scores.h"
#include "tests/kernels/cuda/entry_cases.h"

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
    num_splits_ = EntrySplits(test_.LongestList());
    rows_ = WindowRows(shape.group_size, shape.window);
    partial_stats_.assign(int64_t{test_.num_lists()} * num_splits_ * rows_ * 2,
                          kNan);
  }

  // Both return what the emulator found, or "".
  std::string RunStats(const WindowOptions& options) {
    std::ranges::fill(lse_, std::numeric_limits<float>::quiet_NaN());
    const Kernels kernels = Find();
    const WindowParams params = Params(options);
    const uint32_t row_blocks =
        (rows_ / 16 + kernels.block_m_tiles - 1) / kernels.block_m_tiles;
    std::string error = Launch(options, {splits(), row_blocks, lists()},
                               kernels.shared_bytes, kernels.stats, params);
    if (!error.empty()) return error;
    return Launch(options, {lists(), 3}, 0, MergeWindowStats, params);
  }
  std::string RunColumns(const WindowOptions& options) {
    attention_.assign(test_.num_entries() * test_.shape().group_size,
                      std::numeric_limits<float>::quiet_NaN());
    const Kernels kernels = Find();
    return Launch(options, {splits(), 1, lists()}, kernels.shared_bytes,
                  kernels.columns, Params(options));
  }
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    for (const float x : lse_) bits.push_back(simt::FloatBits(x));
    for (const float x : attention_) bits.push_back(simt::FloatBits(x));
    return bits;
  }

  std::vector<float>& lse() { return lse_; }
  std::vector<float>& sums() { return sums_; }
  const std::vector<float>& attention() const { return attention_; }
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  using Kernel = void (*)(WindowParams);
  struct Kernels {
    Kernel stats = nullptr;
    Kernel columns = nullptr;
    std::size_t shared_bytes = 0;
    int32_t block_m_tiles = 0;
  };
  template <int kDim>
  static Kernels FindDim() {
    using Shape = WindowShape<T, kDim>;
    return {WindowStats<T, kDim>, WindowColumns<T, kDim>, Shape::kSharedBytes,
            Shape::kBlockMTiles};
  }
  Kernels Find() const {
    const int32_t head_dim = test_.shape().head_dim;
    return head_dim == 64    ? FindDim<64>()
           : head_dim == 128 ? FindDim<128>()
                             : FindDim<256>();
  }
  uint32_t splits() const { return static_cast<uint32_t>(num_splits_); }
  uint32_t lists() const { return static_cast<uint32_t>(test_.num_lists()); }

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
    params.num_splits = num_splits_;
    params.attention = options.into_sums ? nullptr : attention_.data();
    params.sums = options.into_sums ? sums_.data() : nullptr;
    return params;
  }
  std::string Launch(const WindowOptions& options, const simt::Grid& grid,
                     std::size_t shared_bytes, Kernel kernel,
                     const WindowParams& params) {
    const simt::LaunchReport report = simt::Launch(
        options.schedule,
        {.grid = grid, .threads = kWindowThreads, .shared_bytes = shared_bytes},
        kernel, params);
    bank_conflicts_ = report.bank_conflicts;
    return report.error;
  }

  EntryCase<T>& test_;
  std::vector<float> lse_;
  std::vector<float> partial_stats_;
  std::vector<float> attention_;
  std::vector<float> sums_;
  int32_t num_splits_ = 0;
  int32_t rows_ = 0;
  int64_t bank_conflicts_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_WINDOW_RUNNER_H_
