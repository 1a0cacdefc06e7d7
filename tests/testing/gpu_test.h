// Tests that run on a GPU, where there is one.
#ifndef TESTS_TESTING_GPU_TEST_H_
#define TESTS_TESTING_GPU_TEST_H_

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_device_runtime.h"

namespace blockmgr {

// Why the process has no GPU, or "". One that is there and cannot be used is a
// failure of the test: the suite would pass without having run.
// sanitize_gpu_tests.py knows the text that is of none being there.
inline std::string WhyNoGpu() {
  const absl::StatusOr<int32_t> count = CountCudaDevices();
  EXPECT_TRUE(count.ok()) << count.status();
  if (!count.ok()) return count.status().ToString();
  return *count > 0 ? "" : "the CUDA runtime finds no device";
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoGpu(); !why.empty()) {
      GTEST_SKIP() << "no GPU: " << why;
    }
  }
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_GPU_TEST_H_
