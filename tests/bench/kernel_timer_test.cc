// Times of launches, where there is a GPU.
#include "bench/kernel_timer.h"

#include <cstdint>
#include <set>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "bench/cuda_kernel_device.h"
#include "tests/testing/gpu_test.h"

namespace blockmgr {
namespace {

class KernelTimerTest : public GpuTest {};

TEST_F(KernelTimerTest, SamplesAreOfAllCopies) {
  const auto timer = KernelTimer::Create();
  ASSERT_TRUE(timer.ok()) << timer.status();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 3 << 20), cudaSuccess);
  std::set<int32_t> seen;
  const auto samples = (*timer)->Time(
      [&](int32_t copy) {
        seen.insert(copy);
        return CudaStatus(
            cudaMemsetAsync(static_cast<char*>(memory) + (copy << 20), 1,
                            1 << 20, (*timer)->stream()),
            "fill");
      },
      3, 5);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->size(), 5u);
  for (const double sample : *samples) EXPECT_GT(sample, 0);
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(KernelTimerTest, LaunchesMayWaitForTheDevice) {
  const auto timer = KernelTimer::Create();
  ASSERT_TRUE(timer.ok()) << timer.status();
  std::set<int32_t> seen;
  const auto samples = (*timer)->TimeWaiting(
      [&](int32_t copy) {
        seen.insert(copy);
        return CudaStatus(cudaStreamSynchronize((*timer)->stream()), "wait");
      },
      2, 3);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->size(), 3u);
  for (const double sample : *samples) EXPECT_GT(sample, 0);
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1}));
}

TEST_F(KernelTimerTest, AFailedLaunchIsAStatus) {
  const auto timer = KernelTimer::Create();
  ASSERT_TRUE(timer.ok()) << timer.status();
  const auto launch = [](int32_t) { return absl::InternalError("no"); };
  const absl::Status failure = launch(0);
  EXPECT_EQ((*timer)->Time(launch, 1, 1).status(), failure);
  EXPECT_EQ((*timer)->TimeWaiting(launch, 1, 1).status(), failure);
  EXPECT_EQ((*timer)->WarmUp(launch, 1), failure);
}

}  // namespace
}  // namespace blockmgr
