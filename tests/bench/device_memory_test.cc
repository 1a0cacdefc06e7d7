// Memory of a device as the benchmark of the kernels allocates it.
#include "bench/device_memory.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class DeviceMemoryTest : public DeviceTest {};

TEST_F(DeviceMemoryTest, AllocationsHaveTheirContents) {
  const auto device = MakeKernelTestDevice();
  DeviceMemory memory(device.get());
  EXPECT_EQ(ReadValues(memory, memory.Allocate<int64_t>(3), 3),
            std::vector<int64_t>(3));
  const std::vector<int32_t> values = {4, 5, 6};
  int32_t* const sent = memory.Send<int32_t>(values);
  EXPECT_EQ(ReadValues(memory, sent, 3), values);
  const std::vector<int32_t> others = {7, 8};
  memory.Upload<int32_t>(sent, others);
  EXPECT_EQ(ReadValues(memory, sent, 3), (std::vector<int32_t>{7, 8, 6}));
  const uint16_t* const elements =
      memory.AllocateElements(2, 9, ElementType::kHalf);
  // Element(9, i) of kernel_problem.h.
  const auto element = [](uint64_t i) {
    const uint64_t bits = SplitMix64((uint64_t{9} << 40) + i) >> 48;
    return ToFloat16(static_cast<float>(bits) / 32768.0f - 1.0f);
  };
  EXPECT_EQ(ReadValues(memory, elements, 2),
            (std::vector<uint16_t>{element(0), element(1)}));
  // An allocation of no values has a place, too.
  EXPECT_NE(memory.Send<int32_t>({}), nullptr);
  EXPECT_TRUE(memory.status().ok());
}

TEST_F(DeviceMemoryTest, TheMostBytesStayAfterTheNewestAreFreed) {
  const auto device = MakeKernelTestDevice();
  DeviceMemory memory(device.get());
  memory.Allocate<char>(100);
  memory.Allocate<int32_t>(50);
  memory.Allocate<int64_t>(0);
  EXPECT_EQ(memory.num_allocations(), 3u);
  EXPECT_EQ(memory.most_bytes(), 100 + 50 * 4 + 8);
  memory.FreeDownTo(1);
  EXPECT_EQ(memory.num_allocations(), 1u);
  memory.Allocate<char>(207);
  EXPECT_EQ(memory.most_bytes(), 308);
  memory.Allocate<char>(2);
  EXPECT_EQ(memory.most_bytes(), 309);
}

TEST_F(DeviceMemoryTest, AfterAFailureNothingIsAllocatedUntilItIsTaken) {
  const auto device = MakeKernelTestDevice();
  DeviceMemory memory(device.get());
  // No device has a TiB.
  EXPECT_EQ(memory.Allocate<char>(int64_t{1} << 40), nullptr);
  EXPECT_EQ(memory.Allocate<char>(1), nullptr);
  EXPECT_EQ(memory.AllocateElements(1, 0, ElementType::kHalf), nullptr);
  EXPECT_EQ(memory.Send<int32_t>(std::vector<int32_t>{1}), nullptr);
  EXPECT_EQ(memory.num_allocations(), 0u);
  EXPECT_EQ(memory.most_bytes(), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(memory.status()));
  EXPECT_TRUE(absl::IsResourceExhausted(memory.TakeStatus()));
  EXPECT_TRUE(memory.status().ok());
  EXPECT_NE(memory.Allocate<char>(1), nullptr);
  EXPECT_TRUE(device->status().ok());
}

}  // namespace
}  // namespace blockmgr
