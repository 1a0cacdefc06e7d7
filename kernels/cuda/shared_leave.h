// Leave to use more shared memory than a kernel may have by itself: asked for
// at every launch, given once.
#ifndef KERNELS_CUDA_SHARED_LEAVE_H_
#define KERNELS_CUDA_SHARED_LEAVE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace blockmgr {

// SharedLeave is what one kernel has leave for on each device. Thread-safe; an
// atomic load where there is leave already.
class SharedLeave {
 public:
  // Calls give() unless it has succeeded before, on this device and for as many
  // bytes. Returns what that returned; Error() is success.
  template <typename Error, typename Give>
  Error Ensure(int device, int64_t bytes, const Give& give) {
    // Of a device beyond the last, leave is given every time.
    if (device < 0 || device >= kMaxDevices) return give();
    std::atomic<int64_t>& given = given_[static_cast<uint32_t>(device)];
    if (given.load(std::memory_order_acquire) >= bytes) return Error();
    // Of two threads the one that asks for less must not come last.
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
