#include "python/core/cuda_devices.h"

#ifdef BLOCKMGR_PYTHON_CUDA
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/host/cuda_device_runtime.h"
#endif

namespace blockmgr::python {
namespace {

#ifdef BLOCKMGR_PYTHON_CUDA

absl::Status Probe() {
  BM_ASSIGN_OR_RETURN(const int32_t num_devices, CountCudaDevices());
  if (num_devices > 0) return absl::OkStatus();
  return absl::UnavailableError(
      "blockmgr.cuda: expected a CUDA device and its driver, found none that "
      "this process can use (nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides "
      "them)");
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> Create(int32_t device) {
  BM_RETURN_IF_ERROR(Probe());
  // The launches name their streams; this one is the device's default.
  return CreateCudaRuntime(device, nullptr);
}

#else

absl::Status Probe() {
  return absl::UnavailableError(
      "blockmgr.cuda: expected a package with CUDA kernels, got one without "
      "them, because nvcc 11.8 or newer was not found when it was built "
      "(docs/python.md, On a GPU)");
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> Create(int32_t /*device*/) {
  return Probe();
}

#endif

}  // namespace

DeviceSource& Devices() {
  static DeviceSource source = {.probe = Probe, .create = Create};
  return source;
}

}  // namespace blockmgr::python
