// DeviceRuntime on a GPU.
#ifndef KERNELS_CUDA_CUDA_RUNTIME_H_
#define KERNELS_CUDA_CUDA_RUNTIME_H_

#include <cstdint>
#include <memory>

#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_runtime.h"

namespace blockmgr {

// How many GPUs the process can use; 0 without a driver too.
int32_t CountCudaDevices();

// One stream of its own on device `device`, which becomes the calling thread's
// current one. Uploads go through 8 MiB of pinned memory, so that they overlap
// with what the device still does; one that does not fit waits. Unavailable
// where there is no such device.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(
    int32_t device);

// A CudaBackend on a GPU.
absl::StatusOr<std::unique_ptr<CudaBackend>> CreateCudaBackend(
    const ModelLayout& layout, const CudaBackendOptions& options,
    int32_t device);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_CUDA_RUNTIME_H_
