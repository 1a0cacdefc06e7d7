// `blockmgr-bench micro`: what bookkeeping costs, one figure per promise.
//
// A figure is called benchmark.measure, such as decode_step_256.p50_us. Every
// run measures every benchmark anew, one after the other; a figure is the
// median of its runs, shown with the smallest and the largest. Ratios compare
// two workloads of one run, whose steps are timed by turns.
//
// Times are CPU time of this thread, so that others on the machine count
// through the caches and interrupts alone. What interrupts do to a tail is
// told twice: by spin_20us, arithmetic that takes as long as a decode step, and
// by same_step_p99_9_over_p50, for which each step's time is its median over
// the runs, in all of which it is the same step.
#ifndef BENCH_MICRO_MICRO_H_
#define BENCH_MICRO_MICRO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

namespace blockmgr {

struct MicroOptions {
  int32_t runs = 5;
  std::string filter = {};  // regular expression; empty: all benchmarks
  // The place for the figures as JSON: a file, or - for standard output, which
  // then has nothing else. If unset, only the table is printed.
  std::optional<std::string> json = std::nullopt;
  // Everything 32 times smaller: to see that it works.
  bool tiny = false;
  bool check = false;  // a figure above its limit is an error
};

struct Figure {
  std::string key = {};
  double median = 0;
  double min = 0;  // of the runs
  double max = 0;
  std::optional<double> limit = std::nullopt;  // at most that

  bool within_limit() const { return !limit.has_value() || median <= *limit; }
};

// Adds a flag per field. `options` is borrowed and must outlive the parsing.
void AddMicroFlags(CLI::App* app, MicroOptions* options);

// Measures what the filter finds in the names of benchmarks, with a progress
// bar where standard error is a terminal. InvalidArgument: a filter that is no
// regular expression or finds nothing.
absl::StatusOr<std::vector<Figure>> RunMicro(const MicroOptions& options);

// FailedPrecondition: what is above its limit, and which that is.
absl::Status CheckFigures(const std::vector<Figure>& figures);
// A table for people: figures next to their limits.
std::string FormatFigures(const MicroOptions& options,
                          const std::vector<Figure>& figures);
// Medians by key, and beside them objects `min`, `max` and `limit` by key.
nlohmann::ordered_json FiguresToJson(const MicroOptions& options,
                                     const std::vector<Figure>& figures);

// Runs and writes what the options ask for. FailedPrecondition, if they ask for
// a check: figures above their limits, all of them named.
absl::Status Micro(const MicroOptions& options);

}  // namespace blockmgr

#endif  // BENCH_MICRO_MICRO_H_
