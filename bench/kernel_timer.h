// Times launches on a GPU.
#ifndef BENCH_KERNEL_TIMER_H_
#define BENCH_KERNEL_TIMER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace blockmgr {

// KernelTimer replays graphs of several launches between two events, so that
// neither the host nor the start of a kernel is part of what is measured, as
// far as launches overlap. Owns a stream. Thread-compatible.
class KernelTimer {
 public:
  // Enqueues on stream().
  using Launch = std::function<absl::Status(int32_t copy)>;

  // On the current device.
  static absl::StatusOr<std::unique_ptr<KernelTimer>> Create();
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;
  ~KernelTimer();

  cudaStream_t stream() const { return stream_; }

  // Launches until the device has been busy long enough to have its clocks up,
  // which start from a fifth.
  absl::Status WarmUp(const Launch& launch, int32_t num_copies);

  // Microseconds of one launch, num_samples times, after some that do not
  // count. Launches go through copies 0 .. num_copies - 1 in turn.
  absl::StatusOr<std::vector<double>> Time(const Launch& launch,
                                           int32_t num_copies,
                                           int32_t num_samples);
  // Times launches that wait for the device in between, which a graph cannot
  // hold. A sample is one launch, with what the host does meanwhile.
  absl::StatusOr<std::vector<double>> TimeWaiting(const Launch& launch,
                                                  int32_t num_copies,
                                                  int32_t num_samples);

 private:
  KernelTimer() = default;

  // A graph of num_launches launches.
  absl::StatusOr<cudaGraphExec_t> Record(const Launch& launch,
                                         int32_t num_copies,
                                         int32_t num_launches);
  // Microseconds of all that is enqueued by enqueue().
  template <typename Enqueue>
  absl::StatusOr<double> Measure(const Enqueue& enqueue);
  // Microseconds of one replay of the whole graph.
  absl::StatusOr<double> Replay(cudaGraphExec_t graph);

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_TIMER_H_
