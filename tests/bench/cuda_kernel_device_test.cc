// What a benchmark's device does beside the library's kernels: on a GPU, where
// there is one.
#include "bench/cuda_kernel_device.h"

#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "bench/kernel_problem.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

TEST(CudaStatusTest, ShortageOfMemoryIsNoFailure) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "x").ok());
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "x").code(),
            absl::StatusCode::kResourceExhausted);
  const absl::Status status = CudaStatus(cudaErrorInvalidValue, "a launch");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message().find("CUDA: a launch: "), 0u) << status;
}

class CudaKernelDeviceTest : public DeviceTest {};

TEST_F(CudaKernelDeviceTest, ElementsAreThoseOfTheFormatAndCopiesArrive) {
  constexpr int64_t kCount = 100'000;
  constexpr uint64_t kSeed = 7;
  const auto device = MakeKernelTestDevice();
  DeviceRuntime& runtime = device->runtime();
  const auto from = runtime.Allocate(kCount * 2);
  const auto to = runtime.Allocate(kCount * 2 + 16);
  ASSERT_TRUE(from.ok() && to.ok());
  for (const ElementType type : {ElementType::kBFloat16, ElementType::kHalf}) {
    runtime.Fill(*to, 0xA5, kCount * 2 + 16);
    device->FillElements(reinterpret_cast<uint16_t*>(*from), kCount, kSeed,
                         type);
    device->CopyCeiling(*from, *to, kCount * 2 / 16);
    std::vector<uint16_t> got(kCount + 8);
    runtime.Download(std::as_writable_bytes(std::span(got)), *to);
    ASSERT_TRUE(device->status().ok()) << device->status();
    for (int64_t i = 0; i < kCount; ++i) {
      const uint64_t bits =
          SplitMix64((kSeed << 40) + static_cast<uint64_t>(i)) >> 48;
      const float value = static_cast<float>(bits) / 32768.0f - 1.0f;
      ASSERT_EQ(got[i], type == ElementType::kHalf ? ToFloat16(value)
                                                   : ToBFloat16(value))
          << ElementName(type) << " " << i;
    }
    for (int64_t i = kCount; i < kCount + 8; ++i) ASSERT_EQ(got[i], 0xA5A5);
  }
  runtime.Free(*from);
  runtime.Free(*to);
}

}  // namespace
}  // namespace blockmgr
