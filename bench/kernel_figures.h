// The limits of `blockmgr-bench kernels --check`: figures of its report, next
// to the promises of an H100.
#ifndef BENCH_KERNEL_FIGURES_H_
#define BENCH_KERNEL_FIGURES_H_

#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <nlohmann/json_fwd.hpp>

#include "bench/kernels.h"

namespace blockmgr {

// The worst of the results that a promise is about.
struct KernelFigure {
  std::string name;
  std::string unit;
  bool at_least = false;  // else: at most
  double limit = 0;
  std::optional<double> worst = std::nullopt;  // unset: no such result

  bool met() const {
    return worst.has_value() && (at_least ? *worst >= limit : *worst <= limit);
  }
};

// The runs whose results, in one report, have all figures. Device, elements,
// order of tensors, seed and samples are those of `options`. With lengths of
// real models there is one run, of decode, batch-invariant decode and
// compaction on these lengths, in the shape of `options`. Only decode has
// limits.
std::vector<KernelBenchOptions> FigureRuns(const KernelBenchOptions& options);

// Reads a report as kernel_report.h has it. One entry per promise, met or not.
// If the report has lengths of real models, the entries are two for each of
// these: decode against reading, and against even lengths of the same total.
std::vector<KernelFigure> KernelFigures(const nlohmann::ordered_json& report);

// FailedPrecondition: which figures are missed or not there, and by how much.
absl::Status CheckKernelFigures(const std::vector<KernelFigure>& figures);

// For people: a line per figure.
std::string FormatKernelFigures(const std::vector<KernelFigure>& figures);
nlohmann::ordered_json KernelFiguresToJson(
    const std::vector<KernelFigure>& figures);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_FIGURES_H_
