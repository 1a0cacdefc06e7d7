// ThreadPool runs the pieces of one loop on several threads.
//
// A loop of some microseconds must be worth its threads: a forward pass is some
// hundred matrix products of 20 to 200 us, one after the other. So idle threads
// spin for a short time before they sleep, and a loop does not wait for threads
// that have not begun to help when its last piece is taken.
//
// Threads: one thread at a time calls ParallelFor.
#ifndef KERNELS_CPU_THREAD_POOL_H_
#define KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include <absl/functional/function_ref.h>

namespace blockmgr {

class ThreadPool {
 public:
  static constexpr int32_t kMaxThreads = 1024;
  // Returns how many threads are worth having on so many processors.
  static int32_t CountHardwareThreads(
      unsigned num_processors = std::thread::hardware_concurrency());

  // The caller of ParallelFor is one of the threads. Throws std::system_error
  // if the system refuses a thread. REQUIRES: 1 <= num_threads <= kMaxThreads.
  explicit ThreadPool(int32_t num_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int32_t num_threads() const {
    return static_cast<int32_t>(helpers_.size()) + 1;
  }

  // Calls piece(0) .. piece(num_pieces - 1), each once, in any order and on any
  // thread. Returns when all calls have returned. If a call throws, the pieces
  // that have not begun are left out, and one of the exceptions is thrown on.
  // REQUIRES: `piece` does not call this pool.
  void ParallelFor(int32_t num_pieces, absl::FunctionRef<void(int32_t)> piece);

 private:
  ThreadPool() = default;

  void Help();
  void RunPieces();
  // Returns the state once it is not `seen` any more.
  uint64_t AwaitChange(uint64_t seen);

  // The loop under way. Helpers read these between entering and leaving it.
  const absl::FunctionRef<void(int32_t)>* piece_ = nullptr;
  int32_t num_pieces_ = 0;
  std::atomic<int32_t> next_piece_ = 0;
  // Written by the first thread that sets has_thrown_.
  std::exception_ptr thrown_;
  std::atomic<bool> has_thrown_ = false;

  // |number of the loop: 32 bits|...|stop|open|helpers inside: 16 bits|
  std::atomic<uint64_t> state_ = 0;
  // Helpers that sleep, or are about to.
  std::atomic<int32_t> num_sleeping_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_THREAD_POOL_H_
