// Permission to use more shared memory than a kernel has by default. It is
// asked for at every launch and set once per device.
#ifndef KERNELS_CUDA_SHARED_LEAVE_H_
#define KERNELS_CUDA_SHARED_LEAVE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace blockmgr {

// SharedLeave holds the permission of one kernel on each device, in bytes.
// Thread-safe. If the permission is there, Ensure is one atomic load.
class SharedLeave {
 public:
  // Calls give() unless it has succeeded before on this device for at least as
  // many bytes. Returns the result of give(), or Error(), which means success.
  template <typename Error, typename Give>
  Error Ensure(int device, int64_t bytes, const Give& give) {
    // On devices from kMaxDevices on, give() is called every time.
    if (device < 0 || device >= kMaxDevices) return give();
    std::atomic<int64_t>& given = given_[static_cast<uint32_t>(device)];
    if (given.load(std::memory_order_acquire) >= bytes) return Error();
    // If two threads ask at once, the smaller request must not come last.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (given.load(std::memory_order_relaxed) >= bytes) return Error();
    const Error error = give();
    if (error == Error()) given.store(bytes, std::memory_order_release);
    return error;
  }

 private:
  static constexpr int kMaxDevices = 64;

  std::array<std::atomic<int64_t>, kMaxDevices> given_ = {};  // bytes
  std::mutex mutex_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SHARED_LEAVE_H_
