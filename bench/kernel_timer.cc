#include "bench/kernel_timer.h"

#include <algorithm>
#include <chrono>

#include "bench/cuda_kernel_device.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// A sample is about so long: far above the events' resolution of half a
// microsecond, and short enough for clocks to stay as they are.
constexpr double kSampleUs = 2000;
constexpr int32_t kMaxLaunches = 512;
constexpr std::chrono::milliseconds kWarmUpTime{200};
constexpr int32_t kWarmUps = 3;

// Samples of measure(i), i from 0 on, after some that do not count.
template <typename OneSample>
absl::StatusOr<std::vector<double>> Sample(const OneSample& measure,
                                           int32_t num_samples) {
  std::vector<double> samples;
  for (int32_t i = 0; i < kWarmUps + num_samples; ++i) {
    BM_ASSIGN_OR_RETURN(const double time_us, measure(i));
    if (i >= kWarmUps) samples.push_back(time_us);
  }
  return samples;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelTimer>> KernelTimer::Create() {
  std::unique_ptr<KernelTimer> timer(new KernelTimer);
  BM_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&timer->stream_, cudaStreamNonBlocking),
      "stream"));
  BM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&timer->begin_), "event"));
  BM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&timer->end_), "event"));
  return timer;
}

KernelTimer::~KernelTimer() {
  if (begin_ != nullptr) static_cast<void>(cudaEventDestroy(begin_));
  if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

absl::StatusOr<cudaGraphExec_t> KernelTimer::Record(const Launch& launch,
                                                    int32_t num_copies,
                                                    int32_t num_launches) {
  BM_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
      "capture"));
  absl::Status status;
  for (int32_t i = 0; i < num_launches && status.ok(); ++i) {
    status = launch(i % num_copies);
  }
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream_, &graph);
  cudaGraphExec_t result = nullptr;
  if (status.ok() && error == cudaSuccess) {
    error = cudaGraphInstantiateWithFlags(&result, graph, 0);
  }
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  BM_RETURN_IF_ERROR(status);
  BM_RETURN_IF_ERROR(CudaStatus(error, "recording launches"));
  return result;
}

template <typename Enqueue>
absl::StatusOr<double> KernelTimer::Measure(const Enqueue& enqueue) {
  BM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin_, stream_), "timing"));
  BM_RETURN_IF_ERROR(enqueue());
  cudaError_t error = cudaEventRecord(end_, stream_);
  if (error == cudaSuccess) error = cudaEventSynchronize(end_);
  float milliseconds = 0;
  if (error == cudaSuccess) {
    error = cudaEventElapsedTime(&milliseconds, begin_, end_);
  }
  BM_RETURN_IF_ERROR(CudaStatus(error, "timing"));
  return double{milliseconds} * 1000;
}

absl::StatusOr<double> KernelTimer::Replay(cudaGraphExec_t graph) {
  // Once before: the stream is busy then while the host submits what is timed,
  // which would else be part of it.
  const auto launch = [&] {
    return CudaStatus(cudaGraphLaunch(graph, stream_), "timing");
  };
  BM_RETURN_IF_ERROR(launch());
  return Measure(launch);
}

absl::Status KernelTimer::WarmUp(const Launch& launch, int32_t num_copies) {
  const auto end = std::chrono::steady_clock::now() + kWarmUpTime;
  for (int32_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
    BM_RETURN_IF_ERROR(launch(i % num_copies));
    BM_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "warming"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> KernelTimer::Time(const Launch& launch,
                                                      int32_t num_copies,
                                                      int32_t num_samples) {
  // The first ones load the code, which not every driver does while recording;
  // and a fault of a kernel is one of its launch, not of its timing.
  for (int32_t copy = 0; copy < num_copies; ++copy) {
    BM_RETURN_IF_ERROR(launch(copy));
    BM_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "running"));
  }
  double once_us = 0;
  {
    BM_ASSIGN_OR_RETURN(const cudaGraphExec_t graph,
                        Record(launch, num_copies, num_copies));
    absl::StatusOr<double> time = Replay(graph);
    if (time.ok()) time = Replay(graph);
    static_cast<void>(cudaGraphExecDestroy(graph));
    BM_RETURN_IF_ERROR(time.status());
    once_us = *time / num_copies;
  }
  const auto wanted = static_cast<int32_t>(std::clamp(
      kSampleUs / std::max(once_us, 0.1), 1.0, double{kMaxLaunches}));
  // Every copy as often as the others.
  const int32_t num_launches =
      (wanted + num_copies - 1) / num_copies * num_copies;
  BM_ASSIGN_OR_RETURN(const cudaGraphExec_t graph,
                      Record(launch, num_copies, num_launches));
  absl::StatusOr<std::vector<double>> samples =
      Sample([&](int32_t) { return Replay(graph); }, num_samples);
  static_cast<void>(cudaGraphExecDestroy(graph));
  BM_RETURN_IF_ERROR(samples.status());
  for (double& sample : *samples) sample /= num_launches;
  return samples;
}

absl::StatusOr<std::vector<double>> KernelTimer::TimeWaiting(
    const Launch& launch, int32_t num_copies, int32_t num_samples) {
  return Sample(
      [&](int32_t i) {
        return Measure([&] { return launch(i % num_copies); });
      },
      num_samples);
}

}  // namespace blockmgr
