// The device that tests of the kernels' benchmark run on: the emulator or a
// GPU, whichever their program is linked with
// (tests/kernels/cuda/test_device.h).
#ifndef TESTS_BENCH_KERNEL_TEST_DEVICE_H_
#define TESTS_BENCH_KERNEL_TEST_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "bench/device_memory.h"
#include "bench/kernel_device.h"

namespace blockmgr {

// REQUIRES: there is a device.
std::unique_ptr<KernelDevice> MakeKernelTestDevice();

// Returns `count` values of the device's memory at `from`.
template <typename T>
std::vector<T> ReadValues(const DeviceMemory& memory, const T* from,
                          int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  const absl::Status status = memory.Read<T>(from, values);
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_KERNEL_TEST_DEVICE_H_
