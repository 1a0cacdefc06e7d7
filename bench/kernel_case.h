// KernelCase: one thing that the benchmark of the kernels launches and times.
#ifndef BENCH_KERNEL_CASE_H_
#define BENCH_KERNEL_CASE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "bench/device_memory.h"
#include "bench/kernel_inputs.h"
#include "bench/kernel_report.h"

namespace blockmgr {

// One kernel, or a few kernels that belong together, ready to be launched.
struct KernelCase {
  std::string kernel;
  KernelCeiling ceiling = KernelCeiling::kRead;
  double useful_bytes = 0;
  double flops = 0;
  // Launches on copy `copy` of the pool.
  std::function<void(int32_t copy)> launch = nullptr;
  // Whether a launch waits for the device in between.
  bool waits = false;
  // ResourceExhausted if the device has no room for the case. Then the case has
  // nothing else but its name.
  absl::Status status = absl::OkStatus();
};

// CaseBuilder collects the cases of one family. Their launches borrow the
// inputs and the memory.
struct CaseBuilder {
  // Returns a launch that calls `kernel`, a function of DeviceRuntime, with the
  // parameters and the arguments. The parameters get the pool of the copy.
  template <typename Params, typename Kernel, typename... Args>
  std::function<void(int32_t copy)> OnPool(const Params& params, Kernel kernel,
                                           Args... args) const {
    return [=, &inputs = in, &runtime = memory.runtime()](int32_t copy) {
      Params p = params;
      p.pool = inputs.PoolOf(copy);
      std::invoke(kernel, runtime, p, args...);
    };
  }
  // Returns a launch that calls `kernel` with the arguments, without a pool.
  template <typename Kernel, typename... Args>
  std::function<void(int32_t copy)> OffPool(Kernel kernel, Args... args) const {
    return [=, &runtime = memory.runtime()](int32_t) {
      std::invoke(kernel, runtime, args...);
    };
  }

  const KernelInputs& in;
  // The work space of the cases is allocated here.
  DeviceMemory& memory;
  std::vector<KernelCase> cases = {};
  // The number of entries that each list kept in the last eviction, on the
  // device. Null if the family has no eviction.
  const int32_t* kept = nullptr;
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_CASE_H_
