// What only a real device shows: copies larger than the staging memory, memory
// that runs out, and errors that stay.
#include "kernels/cuda/cuda_runtime.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/device_cases.h"

namespace blockmgr {
namespace {

class CudaRuntimeTest : public DeviceTest {};

// With or without a GPU.
TEST(CudaRuntimeWithoutDeviceTest, RefusesDevicesThatAreNotThere) {
  for (const int32_t device : {-1, CountCudaDevices()}) {
    EXPECT_EQ(CreateCudaRuntime(device).status().code(),
              absl::StatusCode::kUnavailable)
        << device;
  }
}

TEST_F(CudaRuntimeTest, CopiesOfAnySizeArriveInOrder) {
  const auto runtime = MakeTestRuntime(0);
  for (const int64_t size : {int64_t{1}, int64_t{100}, int64_t{40} << 20}) {
    std::vector<uint8_t> sent(size);
    for (int64_t i = 0; i < size; ++i) {
      sent[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
    }
    const auto memory = runtime->Allocate(size);
    ASSERT_TRUE(memory.ok());
    const std::vector<uint8_t> copy = sent;
    runtime->Upload(*memory, std::as_bytes(std::span(sent)));
    std::ranges::fill(sent, uint8_t{0});  // taken before Upload returned
    std::vector<uint8_t> got(size);
    runtime->Download(std::as_writable_bytes(std::span(got)), *memory);
    EXPECT_EQ(got, copy) << size;
    runtime->Fill(*memory, 7, size);
    runtime->Download(std::as_writable_bytes(std::span(got)), *memory);
    EXPECT_EQ(got, std::vector<uint8_t>(size, 7)) << size;
    runtime->Free(*memory);
    EXPECT_TRUE(runtime->status().ok()) << runtime->status();
  }
}

TEST_F(CudaRuntimeTest, ShortageIsNotAFailureOfTheDevice) {
  const auto runtime = MakeTestRuntime(0);
  EXPECT_EQ(runtime->Allocate(int64_t{1} << 45).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(runtime->status().ok());
  const auto memory = runtime->Allocate(1);
  ASSERT_TRUE(memory.ok());
  runtime->Free(*memory);
}

TEST_F(CudaRuntimeTest, TheFirstFailureStays) {
  const auto runtime = MakeTestRuntime(0);
  GatherRows gather;
  gather.rows.count = 1;
  runtime->Gather(gather, RowConversion::kFloatToHalf);
  EXPECT_EQ(runtime->status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(runtime->Allocate(1).ok());
}

}  // namespace
}  // namespace blockmgr
