// `blockmgr-bench kernels`: what the device's memory gives at best, and how
// close every kernel comes to it.
#ifndef BENCH_KERNELS_H_
#define BENCH_KERNELS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "bench/kernel_problem.h"

namespace blockmgr {

// As typed.
struct KernelBenchOptions {
  int32_t device = 0;
  std::vector<int64_t> kv_mib = {64, 256, 1024, 4096};
  std::vector<std::string> distributions = {"uniform", "ragged", "one-huge",
                                            "prompt"};
  std::vector<int32_t> group_sizes = {1, 4, 8};
  int32_t num_heads = 8;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  int32_t mean_length = 4096;
  int32_t prompt_length = 32768;
  int32_t prompt_layers = 1;
  // Files of lengths of real models (kernel_lengths.h). If there are some, the
  // problems have these lengths, and the distributions are not read.
  std::vector<std::string> lengths;
  std::vector<int32_t> lengths_layers;  // empty: of each file two
  std::string tensor_order = "pages";
  std::string dtype = "bf16";
  int32_t tail_tokens = 0;
  uint64_t seed = 1;
  int32_t num_samples = 31;
  std::vector<std::string> kernels;  // empty: all
  std::string problem;               // file; written unless it exists
  bool json = false;
  std::string output;  // file for the JSON, whatever is printed; empty: none
  // Only what is promised of an H100 (kernel_figures.h), and whether it is met.
  bool check = false;
};

void AddKernelFlags(CLI::App* command, KernelBenchOptions* options);

// The problems that the options ask for: the one in the file, or all
// combinations. With a file that is not there yet, the first combination is
// written to it, and is the only one. Lengths of a real model are named "FILE
// layer N", and a problem with the same total in even lengths follows each.
absl::StatusOr<std::vector<KernelProblem>> KernelProblems(
    const KernelBenchOptions& options, std::vector<std::string>* names);

// Takes a report that has grown; its errors end a run.
using ReportSink = std::function<absl::Status(const nlohmann::ordered_json&)>;

// Runs everything into the report of kernel_report.h, behind what is there of a
// run before it. Unavailable, and why, and no report, where the build or the
// machine has no CUDA. Any other error names the problem and the kernel, and
// what was measured before it is reported. Takes seconds per problem; progress
// goes to stderr, and the report to `sink` (unless null) at first and after
// every problem.
absl::Status RunKernels(const KernelBenchOptions& options,
                        nlohmann::ordered_json* report,
                        const ReportSink& sink = nullptr);

// The subcommand: RunKernels, then the table or the JSON to stdout, and the
// JSON to options.output, anew after every problem. With a check, figures as
// well, and FailedPrecondition if some are missed.
absl::Status BenchKernels(const KernelBenchOptions& options);

}  // namespace blockmgr

#endif  // BENCH_KERNELS_H_
