// Launches of kernels on the emulator; see kernels/cuda/launch_shapes.cuh.
#ifndef TESTS_KERNELS_CUDA_EMULATED_LAUNCHER_H_
#define TESTS_KERNELS_CUDA_EMULATED_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "kernels/cuda/launch_shapes.cuh"
#include "tests/kernels/simt/simt_emulator.h"

namespace blockmgr {

// A kernel's address, and the size of one launch of it.
using LaunchObserver = std::function<void(const void*, const LaunchSize&)>;

// Launches kernels one after another until one fails; or, with an observer,
// tells it of them instead.
class EmulatedLauncher {
 public:
  EmulatedLauncher(const simt::Schedule& schedule,
                   const LaunchObserver& observer)
      : schedule_(schedule), observer_(observer) {}

  template <auto kFunction, typename... Arguments>
  bool operator()(const LaunchSize& size, Kernel<kFunction>,
                  const Arguments&... arguments) {
    if (size.x == 0 || size.y == 0 || size.z == 0) return true;
    if (observer_ != nullptr) {
      observer_(reinterpret_cast<const void*>(kFunction), size);
      return true;
    }
    simt::LaunchReport report =
        simt::Launch(schedule_,
                     {.grid = {size.x, size.y, size.z},
                      .threads = size.threads,
                      .shared_bytes = size.shared_bytes},
                     kFunction, arguments...);
    bank_conflicts_ += report.bank_conflicts;
    error_ = std::move(report.error);
    return error_.empty();
  }

  const std::string& error() const { return error_; }
  // Of all launches.
  int64_t bank_conflicts() const { return bank_conflicts_; }

 private:
  const simt::Schedule schedule_;
  const LaunchObserver& observer_;
  std::string error_;
  int64_t bank_conflicts_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_EMULATED_LAUNCHER_H_
