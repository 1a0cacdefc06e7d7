// What tests of kernels run on: the emulator (emulated_device.cc) or a GPU
// (gpu_device.cc), whichever their program is linked with.
#ifndef TESTS_KERNELS_CUDA_TEST_DEVICE_H_
#define TESTS_KERNELS_CUDA_TEST_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/list_splits.h"
#include "kernels/cuda/simt.h"
#include "tests/testing/case_count.h"

namespace blockmgr {

// Why the program has no device, or "". Nothing below may be used without one.
std::string WhyNoDevice();

// The seed is the emulator's.
std::unique_ptr<DeviceRuntime> MakeTestRuntime(uint64_t seed);

// Factors on the lengths and on the number of cases.
int32_t TestLengthFactor();
int32_t TestCaseFactor();
// The first where every case fills pools and has the CPU attend to them, which
// takes minutes long before it does a GPU's size any justice.
inline int32_t PoolLengthFactor() { return std::min(TestLengthFactor(), 8); }

// How many random cases to run where the emulator affords `count`: sanitizers
// make it several times slower.
inline uint64_t CountDeviceCases(uint64_t count) {
  return SlowCases(count) * static_cast<uint64_t>(TestCaseFactor());
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoDevice(); !why.empty()) {
      GTEST_SKIP() << "no GPU: " << why;
    }
  }
};

// Memory that kernels and, while none runs, the host see at one address.
// Aligned to 16 bytes at least. Aborts where there is no room.
void* AllocateShared(std::size_t bytes);
void FreeShared(void* memory, std::size_t bytes);

// How much room there is: the emulator takes only what is touched.
int64_t FreeSharedBytes();

template <typename T>
class SharedAllocator {
 public:
  using value_type = T;
  SharedAllocator() = default;
  template <typename U>
  explicit SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(AllocateShared(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) {
    FreeShared(memory, count * sizeof(T));
  }
  friend bool operator==(const SharedAllocator&, const SharedAllocator&) {
    return true;
  }
};

// What a test's params point to.
template <typename T>
using SharedVector = std::vector<T, SharedAllocator<T>>;

template <typename Values>
auto Shared(const Values& values) {
  using T = std::remove_cvref_t<decltype(*values.begin())>;
  return SharedVector<T>(values.begin(), values.end());
}

// ListSplits::offsets of lists at `offsets`.
inline SharedVector<int32_t> SharedSplits(const SharedVector<int64_t>& offsets,
                                          int32_t split_entries,
                                          int32_t min_splits = 0) {
  SharedVector<int32_t> splits(offsets.size());
  FillSplitOffsets(offsets.data(), std::ssize(offsets) - 1, split_entries,
                   splits.data(), min_splits);
  return splits;
}

struct KernelReport {
  std::string error;           // what went wrong, or ""
  int64_t bank_conflicts = 0;  // that the emulator has counted
};

// Has the device run what `launch` asks of it, to its end, or to the first
// error. The schedule is the emulator's.
KernelReport RunKernels(const simt::Schedule& schedule,
                        const std::function<void(DeviceRuntime&)>& launch);

// Has the device run one kernel, as RunKernels does.
template <typename... Parameters>
KernelReport RunKernel(const simt::Schedule& schedule,
                       void (DeviceRuntime::*kernel)(Parameters...),
                       std::type_identity_t<Parameters>... arguments) {
  return RunKernels(
      schedule, [&](DeviceRuntime& device) { (device.*kernel)(arguments...); });
}

// Runs run(schedule), which returns what went wrong, under several schedules,
// and expects the same result() of all.
template <typename Run, typename Result>
void ExpectSchedulesDoNotMatter(const Run& run, const Result& result) {
  using Order = simt::Schedule::Order;
  ASSERT_EQ(run(simt::Schedule{}), "");
  const auto expected = result();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_EQ(run(simt::Schedule{
                  .order = seed == 0 ? Order::kReverse : Order::kRandom,
                  .seed = seed}),
              "");
    EXPECT_EQ(result(), expected);
  }
}

template <typename T>
constexpr ElementType ElementTypeOf() {
  return std::is_same_v<T, simt::BFloat16> ? ElementType::kBFloat16
                                           : ElementType::kHalf;
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_TEST_DEVICE_H_
