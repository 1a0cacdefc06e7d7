// What only a real device shows: copies larger than the staging memory, memory
// that runs out, and errors that stay.
#include "kernels/cuda/host/cuda_device_runtime.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/kernels/cuda/host/device_cases.h"

namespace blockmgr {
namespace {

class CudaRuntimeTest : public DeviceTest {};

// With or without a GPU.
TEST(CudaRuntimeWithoutDeviceTest, RefusesDevicesThatAreNotThere) {
  const absl::StatusOr<int32_t> num_devices = CountCudaDevices();
  ASSERT_TRUE(num_devices.ok()) << num_devices.status();
  for (const int32_t device : {-1, *num_devices}) {
    EXPECT_EQ(CreateCudaRuntime(device).status().code(),
              absl::StatusCode::kUnavailable)
        << device;
  }
}

TEST(CudaRuntimeWithoutDeviceTest, ErrorsSayWhichDevicesThereAre) {
  EXPECT_TRUE(CheckCudaDevice(0, 1).ok());
  EXPECT_TRUE(CheckCudaDevice(1, 2).ok());
  EXPECT_EQ(CheckCudaDevice(0, 0).message(),
            "device: expected a CUDA device and its driver, found none that "
            "this process can use (nvidia-smi lists them, "
            "CUDA_VISIBLE_DEVICES hides them)");
  for (const int32_t device : {-1, 2}) {
    EXPECT_EQ(CheckCudaDevice(device, 2).message(),
              "device: expected 0 to 1, a CUDA device that this process can "
              "use, got " +
                  std::to_string(device));
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

// As when another thread, or another part of this one, uses another device.
TEST_F(CudaRuntimeTest, TheCallersDeviceMayBeAnother) {
  const absl::StatusOr<int32_t> num_devices = CountCudaDevices();
  ASSERT_TRUE(num_devices.ok());
  std::vector<std::unique_ptr<DeviceRuntime>> runtimes;
  std::vector<char*> memories;
  for (int32_t device = 0; device < *num_devices; ++device) {
    auto runtime = CreateCudaRuntime(device);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtimes.push_back(*std::move(runtime));
  }
  for (const auto& runtime : runtimes) {
    std::thread([&] {
      const auto memory = runtime->Allocate(100);
      ASSERT_TRUE(memory.ok()) << memory.status();
      memories.push_back(*memory);
      runtime->Fill(*memory, 5, 100);
      // The device that a thread begins with is still its own.
      int device = -1;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, 0);
    }).join();
  }
  for (std::size_t i = 0; i < runtimes.size(); ++i) {
    std::vector<uint8_t> got(100);
    runtimes[i]->Download(std::as_writable_bytes(std::span(got)), memories[i]);
    EXPECT_EQ(got, std::vector<uint8_t>(100, 5)) << i;
    runtimes[i]->Free(memories[i]);
    EXPECT_TRUE(runtimes[i]->status().ok()) << runtimes[i]->status();
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

TEST_F(CudaRuntimeTest, NoUploadGetsIntoAGraph) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  {
    const auto runtime = CreateCudaRuntime(0, stream);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const auto memory = (*runtime)->Allocate(100);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const std::vector<uint8_t> bytes(100, 3);
    (*runtime)->Upload(*memory, std::as_bytes(std::span(bytes)));
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    (*runtime)->Fill(*memory, 7, 100);
    (*runtime)->Upload(*memory, {});
    EXPECT_TRUE((*runtime)->status().ok()) << (*runtime)->status();
    (*runtime)->Upload(*memory, std::as_bytes(std::span(bytes)));
    EXPECT_EQ((*runtime)->status().code(),
              absl::StatusCode::kFailedPrecondition);
    // The capture is as good as before.
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    std::size_t num_nodes = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
    EXPECT_EQ(num_nodes, 1u);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    (*runtime)->Free(*memory);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Bindings for engines rely on this: they get a stream with every call.
TEST_F(CudaRuntimeTest, WorkIsForTheStreamThatWasNamedLast) {
  auto runtime = CreateCudaRuntime(0, nullptr);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto memory = (*runtime)->Allocate(100);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<uint8_t> bytes(100, 3);
  (*runtime)->Upload(*memory, std::as_bytes(std::span(bytes)));
  (*runtime)->Download(std::as_writable_bytes(std::span(bytes)), *memory);
  std::vector<cudaStream_t> streams(2);
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
              cudaSuccess);
    (*runtime)->UseStream(stream);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    // A kernel without work launches nothing.
    (*runtime)->Fill(*memory, 7, 100);
    (*runtime)->Gather(GatherRows(), RowConversion::kNone);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    std::size_t num_nodes = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
    EXPECT_EQ(num_nodes, 1u);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  // Nothing was filled. The runtime outlives the streams.
  (*runtime)->Download(std::as_writable_bytes(std::span(bytes)), *memory);
  EXPECT_EQ(bytes, std::vector<uint8_t>(100, 3));
  for (const cudaStream_t stream : streams) {
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  (*runtime)->UseStream(nullptr);
  (*runtime)->Free(*memory);
  EXPECT_TRUE((*runtime)->status().ok()) << (*runtime)->status();
  (*runtime)->UseStream(streams[0]);
  runtime->reset();
}

TEST_F(CudaRuntimeTest, CapturedWorkRunsWheneverItsGraphIsLaunched) {
  const auto runtime = MakeTestRuntime(0);
  const auto memory = runtime->Allocate(100);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto read = [&] {
    std::vector<uint8_t> bytes(100);
    runtime->Download(std::as_writable_bytes(std::span(bytes)), *memory);
    return bytes;
  };
  runtime->Fill(*memory, 1, 100);
  runtime->BeginCapture();
  runtime->Fill(*memory, 7, 100);
  const auto graph = runtime->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(read(), std::vector<uint8_t>(100, 1));
  for (int32_t i = 0; i < 2; ++i) {
    runtime->Fill(*memory, 1, 100);
    runtime->StartTimer();
    runtime->Launch(**graph);
    runtime->StopTimer();
    EXPECT_GT(runtime->TimerSeconds(), 0.0);
    EXPECT_EQ(read(), std::vector<uint8_t>(100, 7));
  }
  runtime->Free(*memory);
  EXPECT_TRUE(runtime->status().ok()) << runtime->status();
}

// The runtime goes on as if nothing had been captured.
TEST_F(CudaRuntimeTest, ACaptureThatFailsLosesNothing) {
  const auto runtime = MakeTestRuntime(0);
  const auto memory = runtime->Allocate(100);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<uint8_t> bytes(100, 3);
  const auto upload = [&] {
    runtime->Upload(*memory, std::as_bytes(std::span(bytes)));
  };
  upload();
  for (int32_t i = 0; i < 2; ++i) {
    runtime->BeginCapture();
    runtime->Fill(*memory, 7, 100);
    if (i == 0) {
      upload();
    } else {
      runtime->Download(std::as_writable_bytes(std::span(bytes)), *memory);
    }
    const auto graph = runtime->EndCapture();
    EXPECT_EQ(graph.status().code(), i == 0
                                         ? absl::StatusCode::kFailedPrecondition
                                         : absl::StatusCode::kInternal);
    EXPECT_TRUE(runtime->status().ok()) << runtime->status();
    runtime->Download(std::as_writable_bytes(std::span(bytes)), *memory);
    EXPECT_EQ(bytes, std::vector<uint8_t>(100, 3));
  }
  upload();
  runtime->Free(*memory);
  EXPECT_TRUE(runtime->status().ok()) << runtime->status();
}

// Launches what the kernels refuse.
void LaunchWrongRows(DeviceRuntime* runtime) {
  GatherRows gather;
  gather.rows.count = 1;
  runtime->Gather(gather, RowConversion::kFloatToHalf);
}

TEST_F(CudaRuntimeTest, TheFirstFailureStays) {
  const auto runtime = MakeTestRuntime(0);
  LaunchWrongRows(runtime.get());
  EXPECT_EQ(runtime->status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(runtime->Allocate(1).ok());
}

TEST_F(CudaRuntimeTest, WorksAgainOnceItsFailureWasTaken) {
  const auto runtime = MakeTestRuntime(0);
  LaunchWrongRows(runtime.get());
  EXPECT_EQ(runtime->TakeStatus().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(runtime->TakeStatus().ok());
  const auto memory = runtime->Allocate(1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  runtime->Fill(*memory, 7, 1);
  runtime->Free(*memory);
  EXPECT_TRUE(runtime->status().ok()) << runtime->status();
}

}  // namespace
}  // namespace blockmgr
