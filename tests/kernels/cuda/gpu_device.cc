// The device of tests that run on a GPU, where there is one.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "kernels/cuda/host/cuda_device_runtime.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/gpu_test.h"

namespace blockmgr {
namespace {

// compute-sanitizer is some hundred times slower: its run asks for the
// emulator's sizes.
int32_t FactorUnlessSmall(int32_t factor) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment
  return std::getenv("BLOCKMGR_TEST_SMALL") == nullptr ? factor : 1;
}

// Tests cannot go on; what a fault of an earlier kernel left comes up here.
[[noreturn]] void Stop(absl::string_view what, absl::string_view why) {
  std::cerr << "the device gives no " << what << ": " << why << '\n';
  std::abort();
}

}  // namespace

std::string WhyNoDevice() { return WhyNoGpu(); }

std::unique_ptr<DeviceRuntime> MakeTestRuntime(uint64_t) {
  auto runtime = CreateCudaRuntime(0);
  if (!runtime.ok()) Stop("a runtime", runtime.status().message());
  return *std::move(runtime);
}

int32_t TestLengthFactor() { return FactorUnlessSmall(40); }
int32_t TestCaseFactor() { return FactorUnlessSmall(4); }

// Managed: pages go to whoever touches them.
void* AllocateShared(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocManaged(&memory, bytes);
  if (error != cudaSuccess) {
    Stop(absl::StrCat(bytes, " bytes"), cudaGetErrorString(error));
  }
  return memory;
}

void FreeShared(void* memory, std::size_t) {
  // A failed kernel's error comes up here again; RunKernels has reported it.
  static_cast<void>(cudaFree(memory));
}

// More managed memory than a device has free can stop it.
int64_t FreeSharedBytes() {
  constexpr int64_t kOthers = int64_t{1} << 30;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free) - kOthers;
}

KernelReport RunKernels(const simt::Schedule&,
                        const std::function<void(DeviceRuntime&)>& launch) {
  const std::unique_ptr<DeviceRuntime> runtime = MakeTestRuntime(0);
  launch(*runtime);
  const cudaError_t error = cudaDeviceSynchronize();
  if (!runtime->status().ok()) {
    return {.error = std::string(runtime->status().message())};
  }
  if (error == cudaSuccess) return {};
  return {.error = absl::StrCat("CUDA: ", cudaGetErrorString(error))};
}

}  // namespace blockmgr
