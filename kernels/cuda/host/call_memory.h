// The device memory of one call of a backend: inputs, results and scratch in
// one allocation. The allocation is kept from call to call.
#ifndef KERNELS_CUDA_HOST_CALL_MEMORY_H_
#define KERNELS_CUDA_HOST_CALL_MEMORY_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// CallMemory collects the arrays of a call and places them side by side. A call
// has one upload and one download. Arrays that are both input and result add
// one more upload and download.
//
//   memory.Begin();
//   const auto lengths = memory.Input(host_lengths);
//   const auto sums = memory.Work<float>(1000);
//   const auto scores = memory.Result<float>(num_entries);
//   memory.Send();
//   runtime.Launch.. (memory.Device(lengths), memory.Device(sums), ..)
//   memory.Receive();
//   .. memory.Host(scores) ..
//
// The first bytes are the error word of the device. Every download brings the
// error word, and the word lives from call to call.
//
// After the largest call nothing is allocated. Thread-compatible.
class CallMemory {
 public:
  // The handle of an array of the call.
  template <typename T>
  struct Array {
    int32_t part = 0;
    int64_t offset = 0;  // bytes from the start of the part
    int64_t count = 0;
  };

  // The runtime is borrowed.
  explicit CallMemory(DeviceRuntime* runtime);
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory();

  // Begins a call: forgets the arrays of the previous call.
  void Begin();
  // Adds an array that the device writes and Receive downloads.
  template <typename T>
  Array<T> Result(int64_t count) {
    return Add<T>(kResults, count);
  }
  // Adds an array that is both an input and a result. The caller fills Host()
  // before Send.
  template <typename T>
  Array<T> InOut(int64_t count) {
    return AddStaged<T>(kInOut, count);
  }
  // Adds an input. The caller fills Host() before Send. InputOf adds a copy of
  // `values`.
  template <typename T>
  Array<T> Input(int64_t count) {
    return AddStaged<T>(kInputs, count);
  }
  template <typename T>
  Array<T> InputOf(std::span<const T> values) {
    const Array<T> array = AddStaged<T>(kInputs, std::ssize(values));
    std::copy(values.begin(), values.end(), Host(array).begin());
    return array;
  }
  // Adds scratch memory, which starts indeterminate.
  template <typename T>
  Array<T> Work(int64_t count) {
    return Add<T>(kWork, count);
  }

  // Places the arrays and uploads the inputs. Returns the runtime's status, or
  // the error of an allocation if the device is full.
  [[nodiscard]] absl::Status Send();
  // Waits for the device and downloads the results to Host(). REQUIRES: Send.
  void Receive();

  // REQUIRES: Send was successful.
  template <typename T>
  T* Device(const Array<T>& array) const {
    return reinterpret_cast<T*>(base_ + begins_[array.part] + array.offset);
  }
  // Returns the inputs, and after Receive the results. Valid until the next
  // array is added.
  template <typename T>
  std::span<T> Host(const Array<T>& array) {
    std::vector<std::byte>& bytes = host_[array.part];
    return {reinterpret_cast<T*>(bytes.data() + array.offset),
            static_cast<std::size_t>(array.count)};
  }

  // Returns the address of the device error word, for kernels; null before the
  // first Send.
  uint32_t* device_error() const { return reinterpret_cast<uint32_t*>(base_); }
  // Returns the error word of the last Receive.
  uint32_t error() const { return error_; }
  void ClearError();

  // Returns the bytes of device memory that are held.
  int64_t capacity_bytes() const { return capacity_; }

 private:
  // The parts of the memory, in this order. The results begin with the error
  // word.
  enum Part : int32_t { kResults, kInOut, kInputs, kWork, kNumParts };

  template <typename T>
  Array<T> Add(Part part, int64_t count) {
    const Array<T> array = {part, sizes_[part], count};
    sizes_[part] += Padded(count * static_cast<int64_t>(sizeof(T)));
    return array;
  }
  template <typename T>
  Array<T> AddStaged(Part part, int64_t count) {
    const Array<T> array = Add<T>(part, count);
    if (std::ssize(host_[part]) < sizes_[part]) {
      host_[part].resize(sizes_[part]);
    }
    return array;
  }
  static int64_t Padded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  absl::Status Grow(int64_t bytes);

  static constexpr int64_t kAlignment = 256;

  DeviceRuntime* runtime_;
  char* base_ = nullptr;
  int64_t capacity_ = 0;
  uint32_t error_ = 0;
  uint32_t reported_ = 0;  // the error word of the memory before the last Grow
  std::array<int64_t, kNumParts> sizes_ = {};   // bytes
  std::array<int64_t, kNumParts> begins_ = {};  // bytes from base_
  // The host's bytes of each part; kWork has none. They do not shrink.
  std::array<std::vector<std::byte>, kNumParts> host_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CALL_MEMORY_H_
