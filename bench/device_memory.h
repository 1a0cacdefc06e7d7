// DeviceMemory: the memory of a device that the benchmark of the kernels needs.
#ifndef BENCH_DEVICE_MEMORY_H_
#define BENCH_DEVICE_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <absl/status/status.h>

#include "bench/kernel_device.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// DeviceMemory is a stack of allocations on a device, and owns them. After an
// allocation has failed, all later ones fail, until TakeStatus() is called.
// Thread-compatible.
class DeviceMemory {
 public:
  // Borrows the device.
  explicit DeviceMemory(KernelDevice* device) : device_(*device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { FreeDownTo(0); }

  KernelDevice& device() const { return device_; }
  DeviceRuntime& runtime() const { return device_.runtime(); }
  // The error of the allocation that failed.
  const absl::Status& status() const { return status_; }
  // Returns status() and sets it to OK.
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }
  std::size_t num_allocations() const { return allocations_.size(); }
  // The most bytes that were allocated at a time.
  int64_t most_bytes() const { return most_bytes_; }

  // Allocates `count` zeros, at least one. Returns null if the allocation
  // fails.
  template <typename T>
  T* Allocate(int64_t count) {
    return reinterpret_cast<T*>(
        AllocateBytes(std::max<int64_t>(1, count) * int64_t{sizeof(T)}));
  }
  // Allocates `count` elements: element i is Element(seed, i) of
  // kernel_problem.h. Returns null if the allocation fails.
  uint16_t* AllocateElements(int64_t count, uint64_t seed, ElementType type);
  // Allocates a copy of the values. Returns null if the allocation fails.
  template <typename T>
  T* Send(std::span<const T> values) {
    T* memory = Allocate<T>(std::ssize(values));
    if (memory != nullptr) Upload(memory, values);
    return memory;
  }
  // Frees the newest allocations until `num_allocations` are left.
  void FreeDownTo(std::size_t num_allocations);

  // Copies the values to the device's memory at `to`.
  template <typename T>
  void Upload(T* to, std::span<const T> values) const {
    runtime().Upload(reinterpret_cast<char*>(to), std::as_bytes(values));
  }
  // Copies the device's memory at `from` to `out`. Returns the device's status.
  template <typename T>
  absl::Status Read(const T* from, std::span<T> out) const {
    runtime().Download(std::as_writable_bytes(out),
                       reinterpret_cast<const char*>(from));
    return device_.status();
  }

 private:
  struct Allocation {
    char* place = nullptr;
    int64_t bytes = 0;
  };

  char* AllocateBytes(int64_t bytes);

  KernelDevice& device_;
  absl::Status status_;
  std::vector<Allocation> allocations_;
  int64_t num_bytes_ = 0;
  int64_t most_bytes_ = 0;
};

}  // namespace blockmgr

#endif  // BENCH_DEVICE_MEMORY_H_
