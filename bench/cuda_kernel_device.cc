#include "bench/cuda_kernel_device.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "bench/ceiling_kernels.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/host/cuda_device_runtime.h"

namespace blockmgr {
namespace {

constexpr int32_t kCeilingBlocksPerProcessor = 4;

class CudaKernelDevice final : public KernelDevice {
 public:
  CudaKernelDevice(std::unique_ptr<DeviceRuntime> runtime,
                   int32_t num_processors, cudaStream_t stream)
      : runtime_(std::move(runtime)),
        num_blocks_(num_processors * kCeilingBlocksPerProcessor),
        stream_(stream) {}

  DeviceRuntime& runtime() override { return *runtime_; }
  absl::Status status() const override {
    return status_.ok() ? runtime_->status() : status_;
  }

  void ReadCeiling(const char* from, int64_t num_vectors,
                   uint32_t* sink) override {
    Keep(LaunchReadCeiling(from, num_vectors, sink, num_blocks_, stream_),
         "read ceiling");
  }
  void CopyCeiling(const char* from, char* to, int64_t num_vectors) override {
    Keep(LaunchCopyCeiling(from, to, num_vectors, num_blocks_, stream_),
         "copy ceiling");
  }
  void FillElements(uint16_t* out, int64_t count, uint64_t seed,
                    ElementType type) override {
    Keep(LaunchFillElements(out, count, seed, type, stream_), "elements");
  }

 private:
  void Keep(cudaError_t error, absl::string_view what) {
    if (status_.ok()) status_ = CudaStatus(error, what);
  }

  const std::unique_ptr<DeviceRuntime> runtime_;
  const int32_t num_blocks_;
  const cudaStream_t stream_;
  absl::Status status_;
};

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());
  const std::string message =
      absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation
             ? absl::ResourceExhaustedError(message)
             : absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<KernelDevice>> CreateCudaKernelDevice(
    int32_t device, cudaStream_t stream) {
  BM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime,
                      CreateCudaRuntime(device, stream));
  int32_t num_processors = 0;
  BM_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&num_processors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "multiprocessors"));
  return std::make_unique<CudaKernelDevice>(std::move(runtime), num_processors,
                                            stream);
}

}  // namespace blockmgr
