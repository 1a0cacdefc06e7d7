// The report of `blockmgr-bench kernels`: JSON, and a table made from it.
//
//   date (of the run's begin, UTC), commit (that it was built from:
//     program/build_info.h), device, sm_count, l2_bytes, cuda_driver (newest
//     CUDA that the driver knows), cuda_runtime (that it was built with), seed
//   results[]: kernel, distribution, tensor_order (kTensorOrderNames of
//     kernel_inputs.h), group_size, dtype ("bf16" or "fp16"),
//     kv_bytes (with tails), tail_tokens (of all sequences), num_sequences,
//     num_heads, head_dim, page_size, max_over_mean (of the lists' lengths,
//     with tails), useful_bytes, flops, median_us, p10_us, p90_us,
//     num_samples, gb_per_s, tflop_per_s (null without flops), ceiling ("read",
//     "copy" or null) and percent_of_ceiling, of the ceiling that the same
//     process measured at the same size
//   not_run[]: what the device has no room for: kernel (if not all of the
//     problem), distribution, group_size, kv_bytes, why
//
// compare_pytorch.py prints the same keys, without tensor_order.
#ifndef BENCH_KERNEL_REPORT_H_
#define BENCH_KERNEL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/time/time.h>
#include <nlohmann/json_fwd.hpp>

#include "bench/kernel_problem.h"

namespace blockmgr {

// The speed of memory that bounds a kernel.
enum class KernelCeiling : uint8_t { kNone, kRead, kCopy };

struct KernelResult {
  std::string kernel;
  std::string distribution;
  std::string tensor_order;
  KernelCeiling ceiling = KernelCeiling::kNone;
  double useful_bytes = 0;         // moved at least, by any implementation
  double flops = 0;                // 0: bytes are what counts
  std::vector<double> samples_us;  // of one launch each
};

// Nearest-rank percentile, 0 < percent <= 100. REQUIRES: samples are not empty.
double SamplePercentile(std::vector<double> samples, double percent);

struct KernelRun {
  absl::Time date = absl::UnixEpoch();
  std::string device = {};
  int32_t sm_count = 0;
  int64_t l2_bytes = 0;
  // As CUDA writes versions: 1000 * major + 10 * minor.
  int32_t cuda_driver = 0;
  int32_t cuda_runtime = 0;
  uint64_t seed = 0;
};

// A report without results.
nlohmann::ordered_json KernelReportJson(const KernelRun& run);

// One entry of results[]. ceiling_gb_per_s: what result.ceiling gives; 0 for
// kNone.
nlohmann::ordered_json KernelResultJson(const KernelProblem& problem,
                                        const KernelResult& result,
                                        double ceiling_gb_per_s);

// For people: a line per result.
std::string FormatKernelReport(const nlohmann::ordered_json& report);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_REPORT_H_
