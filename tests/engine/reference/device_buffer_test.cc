#include "engine/reference/device_buffer.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(DeviceBufferTest, GrowsByHalfAtLeast) {
  EmulatedRuntime runtime(1, 1000);
  DeviceBuffer buffer(&runtime);
  ASSERT_OK(buffer.Reserve(100));
  const int64_t before = runtime.num_allocations();
  ASSERT_OK(buffer.Reserve(101));
  ASSERT_OK(buffer.Reserve(150));
  EXPECT_EQ(runtime.num_allocations(), before + 1);
}

TEST(DeviceBufferTest, HasNothingIfTheDeviceIsFull) {
  EmulatedRuntime runtime(1, 1000);
  DeviceBuffer buffer(&runtime);
  ASSERT_OK(buffer.Reserve(600));
  EXPECT_EQ(buffer.Reserve(1001).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(buffer.data(), nullptr);
  // The old memory was given back.
  ASSERT_OK(buffer.Reserve(1000));
}

}  // namespace
}  // namespace blockmgr
