// The device of tests that run without a GPU.
#include <memory>
#include <string>

#include "tests/kernels/cuda/device_cases.h"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {

std::string WhyNoDevice() { return ""; }

std::unique_ptr<DeviceRuntime> MakeTestRuntime(uint64_t seed) {
  return std::make_unique<EmulatedRuntime>(seed, int64_t{1} << 28);
}

int32_t TestLengthFactor() { return 1; }
int32_t TestCaseFactor() { return 1; }

}  // namespace blockmgr
