// `blockmgr-bench sim`: a simulation's report, at the request rate of its flags
// or at the highest one at which --goodput holds.
#ifndef BENCH_SIM_RATES_H_
#define BENCH_SIM_RATES_H_

#include <optional>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "bench/options.h"
#include "bench/sim.h"

namespace blockmgr {

struct RateSearchOptions {
  bool find_max_rate = false;
  std::optional<double> good_percent =
      std::nullopt;  // unset: kDefaultGoodPercent
};

inline constexpr double kDefaultGoodPercent = 99;

// Adds the flags. `options` is borrowed and must outlive the parsing.
void AddRateSearchFlags(CLI::App* app, RateSearchOptions* options);

// Returns the report of one run at the rate of `bench`. If the highest rate is
// to be found (FindMaxRate), returns the report of the run at that rate, with
// two more fields:
//
//   max_request_rate  the rate; "inf": with all requests at once
//   rate_search       {good_percent, failing_request_rate, resolution,
//                      trials: [{request_rate, good_percent,
//                                request_throughput}]}
//
// Runs of a search differ in --request-rate alone: with --scale-trace a trace
// keeps the pattern of its arrivals. Errors name the flag: those of
// ResolveOptions, RunSim and FindMaxRate; a search without a goodput or with a
// rate; a percentage without a search.
absl::StatusOr<nlohmann::ordered_json> ReportSim(
    const BenchOptions& bench, const SimOptions& sim,
    const RateSearchOptions& search);

}  // namespace blockmgr

#endif  // BENCH_SIM_RATES_H_
