// The device of tests that run on a GPU, where there is one.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "blockmgr/base/check.h"
#include "kernels/cuda/cuda_device_runtime.h"
#include "tests/kernels/cuda/device_cases.h"
#include "tests/testing/gpu_test.h"

namespace blockmgr {
namespace {

// compute-sanitizer is some hundred times slower: its run asks for the
// emulator's sizes.
int32_t FactorUnlessSmall(int32_t factor) {
  return std::getenv("BLOCKMGR_TEST_SMALL") == nullptr ? factor : 1;
}

}  // namespace

std::string WhyNoDevice() { return WhyNoGpu(); }

std::unique_ptr<DeviceRuntime> MakeTestRuntime(uint64_t) {
  auto runtime = CreateCudaRuntime(0);
  BM_CHECK(runtime.ok());
  return *std::move(runtime);
}

int32_t TestLengthFactor() { return FactorUnlessSmall(40); }
int32_t TestCaseFactor() { return FactorUnlessSmall(4); }

}  // namespace blockmgr
