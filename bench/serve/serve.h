// `blockmgr-bench serve`: loads a daemon, open loop.
//
// Requests leave at their intended times, whatever the daemon does. A
// concurrency limit, or an overload of this program, may hold sends back. Both
// show as client lag, and latencies include them.
#ifndef BENCH_SERVE_SERVE_H_
#define BENCH_SERVE_SERVE_H_

#include <optional>
#include <string>

#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>

#include "bench/options.h"
#include "bench/report.h"
#include "program/progress.h"

namespace blockmgr {

struct ServeOptions {
  std::optional<std::string> address;  // a gRPC target; unset: the default
  // The time for which to wait for a daemon with an engine.
  double ready_check_timeout_s = 60;
  // Do not reset the prefix cache before the run.
  bool keep_prefix_cache = false;
};

// Returns the address that is given, or the default daemon's.
absl::StatusOr<std::string> AddressOf(const ServeOptions& options);

// Adds the flags that find the daemon. `options` is borrowed and must outlive
// the parsing.
void AddDaemonFlags(CLI::App* app, ServeOptions* options);

// Adds all flags. `options` is borrowed and must outlive the parsing.
void AddServeFlags(CLI::App* app, ServeOptions* options);

// Runs a plan to its end. `progress` may be null. Errors: no daemon, no engine,
// or a prefix cache that cannot be reset. Requests that fail are part of the
// result. The result has the daemon's counters unless they began again during
// the run, because the daemon restarted or an engine of another geometry
// attached.
absl::StatusOr<RunResult> RunServe(const ServeOptions& options,
                                   const BenchPlan& plan, Progress* progress);

}  // namespace blockmgr

#endif  // BENCH_SERVE_SERVE_H_
