// KernelDevice on a GPU.
#ifndef BENCH_CUDA_KERNEL_DEVICE_H_
#define BENCH_CUDA_KERNEL_DEVICE_H_

#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "bench/kernel_device.h"

namespace blockmgr {

// An error is no longer the runtime's last one then, which the next launch
// would be blamed for, unless it stays.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// On the caller's stream of that device, which outlives it.
absl::StatusOr<std::unique_ptr<KernelDevice>> CreateCudaKernelDevice(
    int32_t device, cudaStream_t stream);

}  // namespace blockmgr

#endif  // BENCH_CUDA_KERNEL_DEVICE_H_
