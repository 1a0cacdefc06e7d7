// Launches nvcc's kernels on a stream (.cu only); see launch_shapes.cuh.
#ifndef KERNELS_CUDA_CUDA_LAUNCHER_CUH_
#define KERNELS_CUDA_CUDA_LAUNCHER_CUH_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/shared_leave.h"

namespace blockmgr {

// Permits a kernel to use `bytes` of shared memory on the current device. Also
// sets the preferred carve-out to shared memory, so that a multiprocessor holds
// as many blocks as fit; the driver need not choose this by itself. REQUIRES:
// the device is never reset, because a reset takes the permission away.
template <auto kFunction>
cudaError_t AllowSharedBytes(int64_t bytes) {
  static SharedLeave leave;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = leave.Ensure<cudaError_t>(device, bytes, [bytes] {
      const cudaError_t set = cudaFuncSetAttribute(
          kFunction, cudaFuncAttributeMaxDynamicSharedMemorySize,
          static_cast<int>(bytes));
      return set != cudaSuccess
                 ? set
                 : cudaFuncSetAttribute(
                       kFunction,
                       cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
    });
  }
  // Not the next launch's.
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

// Returns whether the code that the current device runs for a kernel awaits
// earlier kernels. Code for architectures before sm_90 does not, on any device.
template <auto kFunction>
bool AwaitsEarlierKernels() {
  static std::array<std::atomic<int>, 64> versions = {};  // 0 if not known
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const bool known_later = device < static_cast<int>(versions.size());
  int version = known_later ? versions[device].load() : 0;
  if (version == 0) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kFunction) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // the launch's, if it is one
      return false;
    }
    version = attributes.ptxVersion;
    if (known_later) versions[device].store(version);
  }
  return version >= 90;
}

// From sm_90 on a kernel may begin while the kernel before it on the stream
// ends (programmatic dependent launch). The gap between the two is a large part
// of the time of a short kernel.
class CudaLauncher {
 public:
  explicit CudaLauncher(cudaStream_t stream) : stream_(stream) {}

  template <auto kFunction, typename... Arguments>
  bool operator()(const LaunchSize& size, Kernel<kFunction>,
                  const Arguments&... arguments) {
    if (size.x == 0 || size.y == 0 || size.z == 0) return true;
    // A kernel needs permission to use more shared memory than this.
    if (size.shared_bytes > 48 * 1024) {
      error_ = AllowSharedBytes<kFunction>(size.shared_bytes);
      if (error_ != cudaSuccess) return false;
    }
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(size.x, size.y, size.z);
    config.blockDim = dim3(size.threads);
    config.dynamicSmemBytes = size.shared_bytes;
    config.stream = stream_;
    config.attrs = &overlap;
    config.numAttrs = AwaitsEarlierKernels<kFunction>() ? 1 : 0;
    error_ = cudaLaunchKernelEx(&config, kFunction, arguments...);
    // Not the next launch's.
    if (error_ != cudaSuccess) static_cast<void>(cudaGetLastError());
    return error_ == cudaSuccess;
  }

  // Turns the result of a sequence into an error.
  cudaError_t Result(bool done) const {
    if (done) return cudaSuccess;
    return error_ == cudaSuccess ? cudaErrorInvalidValue : error_;
  }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

// Runs a sequence of launches on the stream.
template <typename Run, typename... Arguments>
cudaError_t OnStream(cudaStream_t stream, Run run,
                     const Arguments&... arguments) {
  CudaLauncher launcher(stream);
  return launcher.Result(run(arguments..., launcher));
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_CUDA_LAUNCHER_CUH_
