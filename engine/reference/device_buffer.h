// DeviceBuffer: memory of a device that grows.
#ifndef ENGINE_REFERENCE_DEVICE_BUFFER_H_
#define ENGINE_REFERENCE_DEVICE_BUFFER_H_

#include <cstddef>

#include <absl/status/status.h>

#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// Memory of a device that grows and is kept. Growing waits for the device, and
// loses the content. The runtime must outlive it.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(DeviceRuntime* runtime) : runtime_(runtime) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  // Has room for so many bytes. Returns ResourceExhausted if the device is
  // full, and then has room for none.
  [[nodiscard]] absl::Status Reserve(size_t bytes);
  char* data() const { return data_; }

 private:
  DeviceRuntime* const runtime_;
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_DEVICE_BUFFER_H_
