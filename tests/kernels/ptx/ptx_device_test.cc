// What the interpreter's CUDA runtime is strict about.
#include "tests/kernels/ptx/ptx_device.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace blockmgr::ptx {
namespace {

class PtxDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
    void* pinned = nullptr;
    ASSERT_EQ(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault),
              cudaSuccess);
    pinned_ = static_cast<char*>(pinned);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    static_cast<void>(cudaGetLastError());
  }
  cudaError_t ToDevice(const void* from) {
    return cudaMemcpyAsync(memory_, from, kBytes, cudaMemcpyHostToDevice,
                           stream_);
  }
  char FirstByte() {
    std::vector<char> bytes(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), memory_, kBytes,
                              cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    return bytes[0];
  }

  static constexpr std::size_t kBytes = 1000;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  char* pinned_ = nullptr;
};

TEST_F(PtxDeviceTest, PinnedMemoryIsReadWhenTheStreamGetsThere) {
  std::memset(pinned_, 1, kBytes);
  ASSERT_EQ(ToDevice(pinned_), cudaSuccess);
  std::memset(pinned_, 2, kBytes);  // too early
  EXPECT_EQ(FirstByte(), 2);
  ASSERT_EQ(ToDevice(pinned_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::memset(pinned_, 3, kBytes);
  EXPECT_EQ(FirstByte(), 2);
}

TEST_F(PtxDeviceTest, PageableMemoryIsReadAtOnce) {
  std::vector<char> bytes(kBytes, 4);
  ASSERT_EQ(ToDevice(bytes.data()), cudaSuccess);
  bytes.assign(kBytes, 5);
  EXPECT_EQ(FirstByte(), 4);
}

TEST_F(PtxDeviceTest, NothingRunsBeforeSomebodyWaits) {
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, 1, cudaMemAttachGlobal), cudaSuccess);
  auto* byte = static_cast<volatile char*>(managed);
  *byte = 0;
  ASSERT_EQ(cudaMemsetAsync(managed, 7, 1, stream_), cudaSuccess);
  EXPECT_EQ(*byte, 0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*byte, 7);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
}

TEST_F(PtxDeviceTest, AGraphRunsWhatWasCaptured) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory_, 8, kBytes, stream_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory_, 1, kBytes, stream_), cudaSuccess);
  EXPECT_EQ(FirstByte(), 1);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(FirstByte(), 8);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(PtxDeviceTest, WaitingOrAllocatingBreaksACapture) {
  for (const bool waits : {true, false}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    void* more = nullptr;
    EXPECT_EQ(waits ? cudaStreamSynchronize(stream_) : cudaMalloc(&more, 1),
              cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(PtxDeviceTest, CopiesPastTheEndAreRefused) {
  std::vector<char> bytes(kBytes + 1);
  EXPECT_EQ(cudaMemcpyAsync(memory_, bytes.data(), kBytes + 1,
                            cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace blockmgr::ptx
