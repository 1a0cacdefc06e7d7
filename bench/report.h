// The report of a run: JSON with the keys of `vllm bench serve` and ours, and
// tables for people, made from that JSON alone.
//
// Besides vLLM's keys (which hold what metrics.h defines):
//
//   {mean,max}_requests_in_flight   running requests; the mean is over time
//   prefix_hit_rate                 cached_tokens of prompt_tokens
//   draft_acceptance_rate           accepted_tokens of draft_tokens
//   max_used_blocks, num_blocks     blocks held by sequences; of the pool
//   preemptions, evictions, ..      counters and peaks of SchedulerStats
//                                   (scheduler/scheduler_stats.h), named as
//                                   there but without "num_"
//   achieved_request_rate           sends per second up to the last; null when
//                                   all were sent at once
//   client_lag_ms                   {mean, p99, max} of send - intended time
//   failures                        by status code: {count, example}
//   good_requests                   completed and within --goodput
//   prefix_cache                    at the start: "new" (a simulation's),
//                                   "reset" or "kept"
//   config                          of the daemon or the simulation
//   notes                           what a reader must know besides: why counts
//                                   are null, who else used the daemon
//
// A counter of the daemon is null where it cannot be known for the time of this
// run. Requests of other clients in that time are counted, too.
#ifndef BENCH_REPORT_H_
#define BENCH_REPORT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <nlohmann/json_fwd.hpp>

#include "bench/metrics.h"
#include "bench/options.h"

namespace blockmgr {

// The results of a run, for its report.
struct RunResult {
  std::vector<RequestRecord> records;  // as the workload's requests
  double duration_s = 0;
  // Unset: not known of this run; `notes` say why.
  std::optional<SystemCounters> counters;
  std::optional<SystemPeaks> peaks;
  std::string prefix_cache;  // see above
  std::vector<std::string> notes;
  std::string endpoint_type;  // grpc or sim
  std::string model_id;
  // The configuration of what ran the requests, named as its flags.
  std::vector<std::pair<std::string, double>> config;
  std::vector<std::pair<std::string, std::string>> choices;  // of it, by name
};

// `date`: wall-clock time of the run. Unset for a simulation, whose report
// depends on its flags alone.
nlohmann::ordered_json BuildReport(const BenchOptions& options,
                                   const BenchPlan& plan,
                                   const RunResult& result,
                                   const std::optional<std::string>& date);

// The report for people, one aligned line per number.
std::string FormatReport(const nlohmann::ordered_json& report);

// {label}-{rate}qps-concurrency{N}-{model}-{time}.json, safe as a file name.
std::string DefaultResultFilename(const nlohmann::ordered_json& report,
                                  const std::string& time);

// "3 of 9 requests failed: 2 UNAVAILABLE, such as: no engine; 1 ..". Empty: all
// completed.
std::string DescribeFailures(const nlohmann::ordered_json& report);

// Checks, before a run, that its report can be saved as the options say, and
// makes the folder. The error names the flags.
absl::Status PrepareResult(const BenchOptions& options);

// Saves the report, as the options say, and prints it to standard output. The
// saved file's name goes to standard error. A name of DefaultResultFilename
// that another file has gets a number. Errors: it cannot be saved.
absl::Status PublishReport(const BenchOptions& options,
                           const nlohmann::ordered_json& report,
                           const std::string& time);

// Writes a JSON file whole or not at all (WriteOutputFiles). REQUIRES: its
// folder exists.
absl::Status WriteReport(const std::string& path,
                         const nlohmann::ordered_json& report);

}  // namespace blockmgr

#endif  // BENCH_REPORT_H_
