// Memory of calls, on the emulator's runtime.
#include "kernels/cuda/host/call_memory.h"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/host/device_cases.h"

namespace blockmgr {
namespace {

class CallMemoryTest : public DeviceTest {};

template <typename T>
std::vector<T> ReadBack(DeviceRuntime& runtime, const T* from, int64_t count) {
  std::vector<T> values(count);
  runtime.Download(std::as_writable_bytes(std::span(values)),
                   reinterpret_cast<const char*>(from));
  return values;
}

TEST_F(CallMemoryTest, InputsArriveAndResultsComeBack) {
  const auto runtime = MakeTestRuntime(1);
  CallMemory memory(runtime.get());
  for (int64_t size = 1; size < 3000; size = size * 3 + 1) {
    memory.Begin();
    std::vector<int64_t> numbers(size);
    std::iota(numbers.begin(), numbers.end(), size);
    const auto input = memory.InputOf(std::span<const int64_t>(numbers));
    const auto work = memory.Work<float>(size);
    const auto in_out = memory.InOut<int32_t>(size);
    const auto result = memory.Result<int64_t>(size);
    std::ranges::fill(memory.Host(in_out), 7);
    ASSERT_TRUE(memory.Send().ok());
    EXPECT_EQ(ReadBack(*runtime, memory.Device(input), size), numbers);
    EXPECT_EQ(ReadBack(*runtime, memory.Device(in_out), size),
              std::vector<int32_t>(size, 7));
    // As a kernel would; nothing may overlap.
    runtime->Fill(reinterpret_cast<char*>(memory.Device(result)), 1, size * 8);
    runtime->Fill(reinterpret_cast<char*>(memory.Device(in_out)), 2, size * 4);
    runtime->Fill(reinterpret_cast<char*>(memory.Device(work)), 3, size * 4);
    memory.Receive();
    EXPECT_EQ(memory.error(), 0u);
    for (const int64_t x : memory.Host(result)) {
      ASSERT_EQ(x, 0x0101010101010101);
    }
    for (const int32_t x : memory.Host(in_out)) ASSERT_EQ(x, 0x02020202);
    EXPECT_EQ(ReadBack(*runtime, memory.Device(input), size), numbers);
  }
}

TEST_F(CallMemoryTest, KeepsTheErrorWordWhenItGrows) {
  const auto runtime = MakeTestRuntime(1);
  CallMemory memory(runtime.get());
  ASSERT_TRUE(memory.Send().ok());
  const uint32_t word = 5;
  runtime->Upload(reinterpret_cast<char*>(memory.device_error()),
                  std::as_bytes(std::span(&word, 1)));
  memory.Begin();
  memory.Work<char>(1 << 20);
  ASSERT_TRUE(memory.Send().ok());
  memory.Receive();
  EXPECT_EQ(memory.error(), 5u);
  memory.ClearError();
  memory.Begin();
  ASSERT_TRUE(memory.Send().ok());
  memory.Receive();
  EXPECT_EQ(memory.error(), 0u);
}

TEST_F(CallMemoryTest, SmallerCallsAllocateNothing) {
  const auto runtime = MakeTestRuntime(1);
  CallMemory memory(runtime.get());
  memory.Work<float>(10'000);
  ASSERT_TRUE(memory.Send().ok());
  const int64_t capacity = memory.capacity_bytes();
  const char* place = reinterpret_cast<const char*>(memory.device_error());
  for (int32_t count = 10'000; count > 0; count /= 2) {
    memory.Begin();
    memory.Work<float>(count);
    ASSERT_TRUE(memory.Send().ok());
  }
  EXPECT_EQ(memory.capacity_bytes(), capacity);
  EXPECT_EQ(reinterpret_cast<const char*>(memory.device_error()), place);
}

TEST_F(CallMemoryTest, AFullDeviceIsAStatus) {
  const auto runtime = MakeTestRuntime(1);
  CallMemory memory(runtime.get());
  ASSERT_TRUE(memory.Send().ok());
  memory.Begin();
  memory.Work<char>(int64_t{1} << 42);
  EXPECT_EQ(memory.Send().code(), absl::StatusCode::kResourceExhausted);
  memory.Begin();
  const auto result = memory.Result<char>(1);
  ASSERT_TRUE(memory.Send().ok());
  runtime->Fill(memory.Device(result), 9, 1);
  memory.Receive();
  EXPECT_EQ(memory.Host(result)[0], 9);
}

}  // namespace
}  // namespace blockmgr
