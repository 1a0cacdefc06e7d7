// The device of tests that run without a GPU.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "blockmgr/base/check.h"
#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 28;
// From here on more than a machine may have: of a mapping only what is touched
// is taken. Sanitizers watch over what operator new gives.
constexpr std::size_t kMappedBytes = std::size_t{1} << 30;

}  // namespace

std::string WhyNoDevice() { return ""; }

std::unique_ptr<DeviceRuntime> MakeTestRuntime(uint64_t seed) {
  return std::make_unique<EmulatedRuntime>(seed, kMaxBytes);
}

int32_t TestLengthFactor() { return 1; }
int32_t TestCaseFactor() { return 1; }

void* AllocateShared(std::size_t bytes) {
  if (bytes < kMappedBytes) return ::operator new(bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BM_CHECK(memory != MAP_FAILED);
  return memory;
}

void FreeShared(void* memory, std::size_t bytes) {
  if (bytes < kMappedBytes) {
    ::operator delete(memory);
  } else {
    BM_CHECK(munmap(memory, bytes) == 0);
  }
}

int64_t FreeSharedBytes() { return std::numeric_limits<int64_t>::max(); }

KernelReport RunKernels(const simt::Schedule& schedule,
                        const std::function<void(DeviceRuntime&)>& launch) {
  EmulatedRuntime runtime(schedule);
  launch(runtime);
  return {.error = std::string(runtime.status().message()),
          .bank_conflicts = runtime.bank_conflicts()};
}

}  // namespace blockmgr
