// RunKernels, where there is CUDA.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>
#include <nlohmann/json.hpp>

#include "bench/cuda_kernel_device.h"
#include "bench/kernel_cases.h"
#include "bench/kernel_problem.h"
#include "bench/kernel_report.h"
#include "bench/kernel_timer.h"
#include "bench/kernels.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cuda/cuda_device_runtime.h"

namespace blockmgr {
namespace {

// Copies of the pool together: several times any second-level cache.
constexpr int64_t kRotatedL2s = 6;

struct Ceilings {
  double read_gb_per_s = 0;
  double copy_gb_per_s = 0;
};

bool IsWanted(const KernelBenchOptions& options, const std::string& kernel) {
  return options.kernels.empty() ||
         std::find(options.kernels.begin(), options.kernels.end(), kernel) !=
             options.kernels.end();
}

// Names in --kernels that are not in the table.
absl::Status CheckNames(const KernelBenchOptions& options,
                        const std::vector<KernelCase>& cases) {
  for (const std::string& name : options.kernels) {
    const auto is_it = [&](const KernelCase& c) { return c.kernel == name; };
    if (std::any_of(cases.begin(), cases.end(), is_it)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--kernels: expected names in the table, got '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status TimeProblem(const KernelBenchOptions& options,
                         KernelDevice& device, KernelTimer& timer,
                         const KernelProblem& problem,
                         const std::string& distribution, int64_t l2_bytes,
                         nlohmann::ordered_json* results) {
  BM_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceProblem> on_device,
      DeviceProblem::Create(problem, {.rotated_bytes = kRotatedL2s * l2_bytes},
                            &device));
  BM_RETURN_IF_ERROR(CheckNames(options, on_device->cases()));
  Ceilings ceilings;
  const int32_t num_copies = on_device->num_copies();
  const KernelCase& first = on_device->cases().front();
  BM_RETURN_IF_ERROR(timer.WarmUp(
      [&](int32_t copy) {
        first.launch(copy);
        return device.status();
      },
      num_copies));
  for (const KernelCase& c : on_device->cases()) {
    const bool is_read = c.kernel == "read_ceiling";
    const bool is_copy = c.kernel == "copy_ceiling";
    if (!is_read && !is_copy && !IsWanted(options, c.kernel)) continue;
    absl::FPrintF(stderr, "%s G=%d %d MiB: %s\n", distribution,
                  problem.group_size, problem.kv_bytes() >> 20, c.kernel);
    KernelResult result;
    result.kernel = c.kernel;
    result.distribution = distribution;
    result.ceiling = c.ceiling;
    result.useful_bytes = c.useful_bytes;
    result.flops = c.flops;
    const auto launch = [&](int32_t copy) {
      c.launch(copy);
      return device.status();
    };
    auto samples =
        c.waits ? timer.TimeWaiting(launch, num_copies, options.num_samples)
                : timer.Time(launch, num_copies, options.num_samples);
    if (!samples.ok()) {
      return absl::Status(
          samples.status().code(),
          absl::StrCat(c.kernel, ": ", samples.status().message()));
    }
    result.samples_us = *std::move(samples);
    const double gb_per_s =
        c.useful_bytes / SamplePercentile(result.samples_us, 50) * 1e-3;
    if (is_read) ceilings.read_gb_per_s = gb_per_s;
    if (is_copy) ceilings.copy_gb_per_s = gb_per_s;
    results->push_back(KernelResultJson(
        problem, result,
        c.ceiling == KernelCeiling::kRead   ? ceilings.read_gb_per_s
        : c.ceiling == KernelCeiling::kCopy ? ceilings.copy_gb_per_s
                                            : 0));
  }
  BM_ASSIGN_OR_RETURN(const uint32_t error, on_device->ReadErrorWord());
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the row mover's error word: expected 0, got ", error));
}

}  // namespace

absl::Status RunKernels(const KernelBenchOptions& options,
                        nlohmann::ordered_json* report) {
  BM_ASSIGN_OR_RETURN(const int32_t num_devices, CountCudaDevices());
  if (options.device >= num_devices) {
    return absl::UnavailableError(absl::StrCat(
        "--device: expected one of the ", num_devices,
        " CUDA devices that this process can use, got ", options.device));
  }
  BM_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "device"));
  cudaDeviceProp properties;
  BM_RETURN_IF_ERROR(CudaStatus(
      cudaGetDeviceProperties(&properties, options.device), "device"));
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<KernelTimer> timer,
                      KernelTimer::Create());
  std::vector<std::string> names;
  BM_ASSIGN_OR_RETURN(const std::vector<KernelProblem> problems,
                      KernelProblems(options, &names));
  (*report)["device"] = properties.name;
  (*report)["sm_count"] = properties.multiProcessorCount;
  (*report)["l2_bytes"] = properties.l2CacheSize;
  (*report)["seed"] = options.seed;
  (*report)["results"] = nlohmann::ordered_json::array();
  (*report)["not_run"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const KernelProblem& problem = problems[i];
    // One per problem: a device that was too small for one stays usable.
    BM_ASSIGN_OR_RETURN(
        const std::unique_ptr<KernelDevice> device,
        CreateCudaKernelDevice(options.device, timer->stream()));
    const absl::Status status =
        TimeProblem(options, *device, *timer, problem, names[i],
                    properties.l2CacheSize, &(*report)["results"]);
    // The device is too small for this one: those before it count all the same.
    if (absl::IsResourceExhausted(status)) {
      (*report)["not_run"].push_back({{"distribution", names[i]},
                                      {"group_size", problem.group_size},
                                      {"kv_bytes", problem.kv_bytes()},
                                      {"why", status.message()}});
      continue;
    }
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat(names[i], ", ", problem.group_size, " query heads, ",
                       problem.kv_bytes(), " bytes: ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
