// The CUDA devices that the module can use.
#ifndef PYTHON_CORE_CUDA_DEVICES_H_
#define PYTHON_CORE_CUDA_DEVICES_H_

#include <cstdint>
#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr::python {

// A source of devices. Tests replace it by the emulator.
struct DeviceSource {
  // Returns OK, or Unavailable with what is missing: the kernels, the driver or
  // a device.
  absl::Status (*probe)();
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> (*create)(int32_t device);
};

// Constant except in tests.
DeviceSource& Devices();

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_CUDA_DEVICES_H_
