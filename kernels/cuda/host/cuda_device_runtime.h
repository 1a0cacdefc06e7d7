// DeviceRuntime on a GPU.
#ifndef KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_
#define KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <optional>

#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// How many GPUs the process can use; 0 without a driver too. What keeps it from
// using those that are there, such as a driver older than the runtime, is an
// error.
absl::StatusOr<int32_t> CountCudaDevices();

// One stream of its own on device `device`, or the caller's (of that device; it
// outlives the runtime, and what else is enqueued there runs in order with it;
// null is the device's default stream). Each call makes the device the calling
// thread's current one: several, on one device or more, may be used in turn by
// one thread, and each by different threads at different times. Uploads go
// through 8 MiB of pinned memory, so that they overlap with what the device
// still does; one that does not fit waits. A caller who captures a graph from
// the stream gets fills and kernels into it, from sm_90 on with programmatic
// edges between kernels (who asks CUDA for the edges must ask for their data,
// too): uploads are refused meanwhile, and CUDA refuses what waits, both for
// good, as any failure. A kernel of the caller's that is launched on this
// stream with programmatic serialization must execute griddepcontrol.wait, for
// ours may still write when it begins, and launch_dependents not before it, for
// ours rely on those before the last one. Unavailable where there is no such
// device, FailedPrecondition where it is one that the kernels do not fit.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(
    int32_t device, std::optional<cudaStream_t> stream = std::nullopt);

// A CudaBackend on a GPU.
absl::StatusOr<std::unique_ptr<CudaBackend>> CreateCudaBackend(
    const ModelLayout& layout, const CudaBackendOptions& options,
    int32_t device);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_
