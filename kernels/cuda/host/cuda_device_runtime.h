// DeviceRuntime on a GPU.
#ifndef KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_
#define KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <optional>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// Returns the number of GPUs that the process can use; 0 also without a driver.
// If there are GPUs but something keeps the process from using them, such as a
// driver older than the runtime, returns an error.
absl::StatusOr<int32_t> CountCudaDevices();

// Returns Unavailable, with what to do, unless `device` is one of the
// `num_devices` GPUs that the process can use.
absl::Status CheckCudaDevice(int32_t device, int32_t num_devices);

// Creates a runtime on device `device`, with a stream of its own or with the
// caller's stream.
//
// The caller's stream belongs to `device` and must outlive the runtime, or be
// replaced (UseStream) before it is destroyed. Null is the device's default
// stream. Other work on the stream runs in order with the work of the runtime.
//
// Each call makes the device current in the calling thread. One thread may use
// several runtimes in turn, on one or several devices. Several threads may use
// a runtime at different times.
//
// Uploads go through 8 MiB of pinned memory, which the first upload allocates,
// so that they overlap with earlier work of the device. An upload that does not
// fit waits.
//
// Graphs: while the caller captures a graph from the stream, fills and kernels
// become part of the graph. From sm_90 on the edges between kernels are
// programmatic: a caller that asks CUDA for the edges must also ask for their
// data. Uploads are refused during a capture, and CUDA refuses calls that wait.
// As after any failure, the runtime is unusable afterwards.
//
// The caller's own kernels: a kernel that is launched on this stream with
// programmatic serialization must execute griddepcontrol.wait, because our
// kernels may still write when it begins. It must not execute launch_dependents
// before that, because our kernels rely on the kernels before their predecessor
// having ended.
//
// Errors: Unavailable if there is no such device, FailedPrecondition if the
// kernels do not fit the device.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(
    int32_t device, std::optional<cudaStream_t> stream = std::nullopt);

// Creates a CudaBackend on a GPU.
absl::StatusOr<std::unique_ptr<CudaBackend>> CreateCudaBackend(
    const ModelLayout& layout, const CudaBackendOptions& options,
    int32_t device);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CUDA_DEVICE_RUNTIME_H_
