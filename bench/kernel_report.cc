#include "bench/kernel_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/check.h"
#include "program/build_info.h"

namespace blockmgr {

double SamplePercentile(std::vector<double> samples, double percent) {
  BM_CHECK(!samples.empty() && percent > 0 && percent <= 100);
  const auto rank = static_cast<std::size_t>(
      std::ceil(percent / 100 * static_cast<double>(samples.size())));
  const auto place = samples.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(samples.begin(), place, samples.end());
  return *place;
}

nlohmann::ordered_json KernelReportJson(const KernelRun& run) {
  const auto version = [](int32_t number) {
    return absl::StrCat(number / 1000, ".", number % 1000 / 10);
  };
  return {{"date", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", run.date,
                                    absl::UTCTimeZone())},
          {"commit", BuildCommit()},
          {"device", run.device},
          {"sm_count", run.sm_count},
          {"l2_bytes", run.l2_bytes},
          {"cuda_driver", version(run.cuda_driver)},
          {"cuda_runtime", version(run.cuda_runtime)},
          {"seed", run.seed},
          {"results", nlohmann::ordered_json::array()},
          {"not_run", nlohmann::ordered_json::array()}};
}

nlohmann::ordered_json KernelResultJson(const KernelProblem& problem,
                                        const KernelResult& result,
                                        double ceiling_gb_per_s) {
  const double median = SamplePercentile(result.samples_us, 50);
  const double gb_per_s = result.useful_bytes / median * 1e-3;
  nlohmann::ordered_json json;
  json["kernel"] = result.kernel;
  json["distribution"] = result.distribution;
  json["tensor_order"] = result.tensor_order;
  json["group_size"] = problem.group_size;
  json["dtype"] = std::string(ElementName(problem.element_type));
  json["kv_bytes"] = problem.kv_bytes();
  json["tail_tokens"] = problem.tail_tokens();
  json["num_sequences"] = problem.num_sequences;
  json["num_heads"] = problem.num_heads;
  json["head_dim"] = problem.head_dim;
  json["page_size"] = problem.page_size;
  json["max_over_mean"] = problem.max_over_mean();
  json["useful_bytes"] = result.useful_bytes;
  json["flops"] = result.flops;
  json["median_us"] = median;
  json["p10_us"] = SamplePercentile(result.samples_us, 10);
  json["p90_us"] = SamplePercentile(result.samples_us, 90);
  json["num_samples"] = result.samples_us.size();
  json["gb_per_s"] = gb_per_s;
  json["tflop_per_s"] = nullptr;
  if (result.flops > 0) json["tflop_per_s"] = result.flops / median * 1e-6;
  json["ceiling"] = nullptr;
  json["percent_of_ceiling"] = nullptr;
  if (result.ceiling != KernelCeiling::kNone && ceiling_gb_per_s > 0) {
    json["ceiling"] = result.ceiling == KernelCeiling::kRead ? "read" : "copy";
    json["percent_of_ceiling"] = 100 * gb_per_s / ceiling_gb_per_s;
  }
  return json;
}

std::string FormatKernelReport(const nlohmann::ordered_json& report) {
  std::size_t name_width = 9;
  for (const auto& result : report.at("results")) {
    name_width = std::max(name_width,
                          result.at("distribution").get<std::string>().size());
  }
  const int width = static_cast<int>(name_width);
  std::string text = absl::StrFormat(
      "%s, commit %s, %s\n"
      "%-16s %-*s %-9s %2s %-5s %8s %7s %10s %17s %8s %8s %9s\n",
      report.at("device").get<std::string>(),
      report.at("commit").get<std::string>(),
      report.at("date").get<std::string>(), "kernel", width, "lengths", "order",
      "G", "dtype", "KV MiB", "tails", "median us", "p10 .. p90", "GB/s",
      "TFLOP/s", "% ceiling");
  for (const auto& result : report.at("results")) {
    const auto& flops = result.at("tflop_per_s");
    const auto& percent = result.at("percent_of_ceiling");
    absl::StrAppendFormat(
        &text,
        "%-16s %-*s %-9s %2d %-5s %8.0f %7d %10.1f %8.1f %8.1f %8.0f %8s %9s\n",
        result.at("kernel").get<std::string>(), width,
        result.at("distribution").get<std::string>(),
        result.at("tensor_order").get<std::string>(),
        result.at("group_size").get<int>(),
        result.at("dtype").get<std::string>(),
        result.at("kv_bytes").get<double>() / (1 << 20),
        result.at("tail_tokens").get<int64_t>(),
        result.at("median_us").get<double>(), result.at("p10_us").get<double>(),
        result.at("p90_us").get<double>(), result.at("gb_per_s").get<double>(),
        flops.is_null() ? "" : absl::StrFormat("%.1f", flops.get<double>()),
        percent.is_null() ? ""
                          : absl::StrFormat("%.1f", percent.get<double>()));
  }
  for (const auto& problem : report.at("not_run")) {
    absl::StrAppendFormat(&text, "not run: %s %s G=%d %.0f MiB: %s\n",
                          problem.value("kernel", "all kernels of"),
                          problem.at("distribution").get<std::string>(),
                          problem.at("group_size").get<int>(),
                          problem.at("kv_bytes").get<double>() / (1 << 20),
                          problem.at("why").get<std::string>());
  }
  return text;
}

}  // namespace blockmgr
