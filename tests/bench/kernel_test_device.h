// The device that tests of the kernels' benchmark run on: the emulator or a
// GPU, whichever their program is linked with
// (tests/kernels/cuda/test_device.h).
#ifndef TESTS_BENCH_KERNEL_TEST_DEVICE_H_
#define TESTS_BENCH_KERNEL_TEST_DEVICE_H_

#include <memory>

#include "bench/kernel_device.h"

namespace blockmgr {

// REQUIRES: there is a device.
std::unique_ptr<KernelDevice> MakeKernelTestDevice();

}  // namespace blockmgr

#endif  // TESTS_BENCH_KERNEL_TEST_DEVICE_H_
