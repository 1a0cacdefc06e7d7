// RunKernels, where there is CUDA.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <cuda_runtime_api.h>
#include <nlohmann/json.hpp>

#include "bench/cuda_kernel_device.h"
#include "bench/kernel_cases.h"
#include "bench/kernel_problem.h"
#include "bench/kernel_report.h"
#include "bench/kernel_timer.h"
#include "bench/kernels.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/host/cuda_device_runtime.h"
#include "kernels/cuda/host/row_error.h"

namespace blockmgr {
namespace {

// Copies of the pool together: several times any second-level cache.
constexpr int64_t kRotatedL2s = 6;

// Names in --kernels that are not in the table.
absl::Status CheckNames(const KernelBenchOptions& options) {
  const std::vector<std::string> names = DeviceProblem::KernelNames();
  for (const std::string& name : options.kernels) {
    if (std::ranges::find(names, name) != names.end()) continue;
    return Invalid("--kernels: expected names in the table, got '", name, "'");
  }
  return absl::OkStatus();
}

// Times the cases of one problem into a report.
class ProblemRun {
 public:
  // All borrowed.
  ProblemRun(const KernelBenchOptions& options, const KernelProblem& problem,
             const std::string& distribution, KernelDevice* device,
             KernelTimer* timer, nlohmann::ordered_json* report)
      : options_(options),
        problem_(problem),
        distribution_(distribution),
        device_(*device),
        timer_(*timer),
        report_(*report) {}

  absl::Status TimeAll(int64_t l2_bytes) {
    BM_ASSIGN_OR_RETURN(
        const std::unique_ptr<DeviceProblem> on_device,
        DeviceProblem::Create(
            problem_,
            {.rotated_bytes = kRotatedL2s * l2_bytes,
             .tensor_order = TensorOrderNamed(options_.tensor_order)},
            &device_));
    num_copies_ = on_device->num_copies();
    std::vector<std::string> kernels = options_.kernels;
    if (!kernels.empty()) {
      kernels.insert(kernels.end(), {"read_ceiling", "copy_ceiling"});
    }
    BM_RETURN_IF_ERROR(on_device->ForEachCase(
        kernels, [&](const KernelCase& c) { return Time(c); }));
    BM_ASSIGN_OR_RETURN(const uint32_t error, on_device->ReadErrorWord());
    if (error == 0) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the device's error word: ", RowErrorText(error)));
  }

  // "": no kernel at all.
  void ReportNotRun(const std::string& kernel, const absl::Status& why) {
    nlohmann::ordered_json entry = {{"distribution", distribution_},
                                    {"group_size", problem_.group_size},
                                    {"kv_bytes", problem_.kv_bytes()},
                                    {"why", why.message()}};
    if (!kernel.empty()) entry["kernel"] = kernel;
    report_["not_run"].push_back(std::move(entry));
  }

 private:
  absl::Status Time(const KernelCase& c) {
    absl::FPrintF(stderr, "%s G=%d %d MiB: %s\n", distribution_,
                  problem_.group_size, problem_.kv_bytes() >> 20, c.kernel);
    if (!c.status.ok()) {
      ReportNotRun(c.kernel, c.status);
      return absl::OkStatus();
    }
    KernelResult result;
    result.kernel = c.kernel;
    result.distribution = distribution_;
    result.tensor_order = options_.tensor_order;
    result.ceiling = c.ceiling;
    result.useful_bytes = c.useful_bytes;
    result.flops = c.flops;
    auto samples = Sample(c);
    if (!samples.ok()) {
      return absl::Status(
          samples.status().code(),
          absl::StrCat(c.kernel, ": ", samples.status().message()));
    }
    result.samples_us = *std::move(samples);
    const double gb_per_s =
        c.useful_bytes / SamplePercentile(result.samples_us, 50) * 1e-3;
    if (c.kernel == "read_ceiling") read_gb_per_s_ = gb_per_s;
    if (c.kernel == "copy_ceiling") copy_gb_per_s_ = gb_per_s;
    report_["results"].push_back(
        KernelResultJson(problem_, result,
                         c.ceiling == KernelCeiling::kRead   ? read_gb_per_s_
                         : c.ceiling == KernelCeiling::kCopy ? copy_gb_per_s_
                                                             : 0));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Sample(const KernelCase& c) {
    const auto launch = [&](int32_t copy) {
      c.launch(copy);
      return device_.status();
    };
    // The device has waited for the host to make the case.
    BM_RETURN_IF_ERROR(timer_.WarmUp(launch, num_copies_));
    return c.waits
               ? timer_.TimeWaiting(launch, num_copies_, options_.num_samples)
               : timer_.Time(launch, num_copies_, options_.num_samples);
  }

  const KernelBenchOptions& options_;
  const KernelProblem& problem_;
  const std::string& distribution_;
  KernelDevice& device_;
  KernelTimer& timer_;
  nlohmann::ordered_json& report_;
  int32_t num_copies_ = 0;
  double read_gb_per_s_ = 0;
  double copy_gb_per_s_ = 0;
};

}  // namespace

absl::Status RunKernels(const KernelBenchOptions& options,
                        nlohmann::ordered_json* report,
                        const ReportSink& sink) {
  BM_ASSIGN_OR_RETURN(const int32_t num_devices, CountCudaDevices());
  BM_RETURN_IF_ERROR(CheckCudaDevice(options.device, num_devices));
  BM_RETURN_IF_ERROR(CheckNames(options));
  BM_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "device"));
  cudaDeviceProp properties;
  BM_RETURN_IF_ERROR(CudaStatus(
      cudaGetDeviceProperties(&properties, options.device), "device"));
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<KernelTimer> timer,
                      KernelTimer::Create());
  std::vector<std::string> names;
  BM_ASSIGN_OR_RETURN(const std::vector<KernelProblem> problems,
                      KernelProblems(options, &names));
  KernelRun facts = {.date = absl::Now(),
                     .device = properties.name,
                     .sm_count = properties.multiProcessorCount,
                     .l2_bytes = properties.l2CacheSize,
                     .seed = options.seed};
  BM_RETURN_IF_ERROR(
      CudaStatus(cudaDriverGetVersion(&facts.cuda_driver), "driver"));
  BM_RETURN_IF_ERROR(
      CudaStatus(cudaRuntimeGetVersion(&facts.cuda_runtime), "runtime"));
  if (report->empty()) *report = KernelReportJson(facts);
  if (sink != nullptr) BM_RETURN_IF_ERROR(sink(*report));
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const KernelProblem& problem = problems[i];
    // One per problem: a device that was too small for one stays usable.
    BM_ASSIGN_OR_RETURN(
        const std::unique_ptr<KernelDevice> device,
        CreateCudaKernelDevice(options.device, timer->stream()));
    ProblemRun run(options, problem, names[i], device.get(), timer.get(),
                   report);
    const absl::Status status = run.TimeAll(properties.l2CacheSize);
    // The device is too small for this one: those before it count all the same.
    const bool is_too_large = absl::IsResourceExhausted(status);
    if (is_too_large) run.ReportNotRun("", status);
    if (sink != nullptr) BM_RETURN_IF_ERROR(sink(*report));
    if (status.ok() || is_too_large) continue;
    return absl::Status(
        status.code(),
        absl::StrCat(names[i], ", ", problem.group_size, " query heads, ",
                     problem.kv_bytes(), " bytes: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
