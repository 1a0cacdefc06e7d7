// The benchmark's device on a GPU.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include <cuda_runtime_api.h>

#include "bench/cuda_kernel_device.h"
#include "blockmgr/base/check.h"
#include "tests/bench/kernel_test_device.h"

namespace blockmgr {

std::unique_ptr<KernelDevice> MakeKernelTestDevice() {
  // One for all tests.
  static const cudaStream_t stream = [] {
    cudaStream_t created = nullptr;
    BM_CHECK(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking) ==
             cudaSuccess);
    return created;
  }();
  auto device = CreateCudaKernelDevice(0, stream);
  if (!device.ok()) {
    std::cerr << device.status() << '\n';
    std::abort();
  }
  return *std::move(device);
}

}  // namespace blockmgr
