// The flags that `blockmgr-bench serve` and `sim` share.
#ifndef BENCH_OPTIONS_H_
#define BENCH_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/arrivals.h"
#include "bench/datasets.h"
#include "bench/metrics.h"
#include "bench/workload.h"
#include "scheduler/request.h"
#include "scheduler/server/eviction_flags.h"

namespace blockmgr {

// As typed. Names follow `vllm bench serve`.
struct BenchOptions {
  DatasetOptions dataset;
  ArrivalOptions arrivals;
  std::optional<int32_t> max_concurrency;
  // Token ids are below it; 256 suits every engine.
  int32_t vocab_size = 256;
  uint64_t seed = 0;

  EvictionFlags eviction;

  std::vector<std::string> goodput;
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> metric_percentiles = {99};

  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::string label;
  std::vector<std::string> metadata;  // key=value
  bool disable_tqdm = false;
  bool json = false;
};

// The options of BenchOptions, checked and loaded: all that a run needs.
struct BenchPlan {
  Workload workload;
  int32_t vocab_size = 256;
  std::optional<int32_t> max_concurrency;
  RequestEviction eviction;
  Goodput goodput;
  std::vector<double> percentiles;  // ascending, 50 and 99 among them
  std::vector<std::string> percentile_metrics;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Adds a flag per field. `options` is borrowed and must outlive the parsing.
void AddBenchFlags(CLI::App* app, BenchOptions* options);

// Checks every option and reads the data set. Errors name the flag, what was
// expected and what came, or the line of the trace.
absl::StatusOr<BenchPlan> ResolveOptions(const BenchOptions& options);

}  // namespace blockmgr

#endif  // BENCH_OPTIONS_H_
