// The outcome of the requests of a run, and the numbers computed from it.
//
// Definitions are those of `vllm bench serve`, except that latencies count from
// the *intended* send time: a client that falls behind, or waits for its own
// concurrency limit, must not hide the wait of its users.
//
//   ttft  first token - intended send time
//   tpot  (last token - first token) / (output tokens - 1); none for one token
//   itl   between successive messages with tokens of one request
//   e2el  last token - intended send time
//
// Percentiles interpolate linearly and the standard deviation is that of the
// population, as NumPy's defaults. All times in seconds unless named _ms.
#ifndef BENCH_METRICS_H_
#define BENCH_METRICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "scheduler/scheduler_stats.h"

namespace blockmgr {

struct RequestRecord {
  double intended_s = 0;         // from the start of the run
  std::optional<double> sent_s;  // unset: never sent
  std::vector<double> tokens_s;  // arrival of each output token, ascending
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in a cache
  bool completed = false;
  absl::Status failure;  // why not, unless completed
};

// Counts of the daemon, or of the simulated one, during the run. The gauges of
// `scheduler` are those at the end.
struct SystemCounters {
  double mean_requests_in_flight = 0;  // running requests, over time
  SchedulerStats scheduler = {};
};

// The extremes of the run. Those of kept entries are in SchedulerStats.
struct SystemPeaks {
  int32_t max_requests_in_flight = 0;
  int32_t max_used_blocks = 0;
};

// The q-th percentile, 0 <= q <= 100, of ascending values; 0 if there are none.
double Percentile(std::span<const double> sorted, double q);

struct Distribution {
  int64_t num_values = 0;
  double mean = 0;
  double median = 0;
  double std = 0;
  double max = 0;
  std::map<double, double> percentiles;  // by q

  // O(n log n). No values: zeros.
  static Distribution Of(std::vector<double> values,
                         std::span<const double> percentiles);
};

// Service level objectives in milliseconds; a request is good if it meets all.
struct Goodput {
  std::optional<double> ttft_ms = std::nullopt;
  std::optional<double> tpot_ms = std::nullopt;
  std::optional<double> e2el_ms = std::nullopt;

  bool any() const {
    return ttft_ms.has_value() || tpot_ms.has_value() || e2el_ms.has_value();
  }
  // From "ttft:200 tpot:50 e2el:5000"; keys at most once, values positive.
  static absl::StatusOr<Goodput> Parse(absl::string_view text);
};

struct FailureCount {
  int64_t count = 0;
  std::string example;  // message of the first one
};

struct RunSummary {
  double duration_s = 0;  // start to the last event of any request
  int64_t completed = 0;
  int64_t failed = 0;
  std::map<std::string, FailureCount> failures;  // by status code
  int64_t total_input_tokens = 0;  // of completed requests, as the rest
  int64_t total_output_tokens = 0;
  double request_throughput = 0;  // per second
  std::optional<int64_t> good;    // completed and within the goodput's limits
  std::optional<double> request_goodput;
  double output_throughput = 0;         // tokens per second
  double total_token_throughput = 0;    // tokens per second
  double max_output_tokens_per_s = 0;   // in the fullest whole second
  int64_t max_concurrent_requests = 0;  // sent and unfinished, at one time
  // Requests sent per second up to the last send; unset when all left at 0.
  std::optional<double> achieved_request_rate;
  Distribution client_lag_ms;  // send time - intended send time
  std::map<std::string, Distribution> latencies_ms;  // ttft, tpot, itl, e2el
};

// Percentiles asked for, with those every report has: 50 and 99. Ascending.
std::vector<double> WithDefaultPercentiles(std::vector<double> asked);

// Cost: O(tokens log tokens). REQUIRES: duration_s >= 0.
RunSummary Summarize(std::span<const RequestRecord> records, double duration_s,
                     const Goodput& goodput,
                     std::span<const double> percentiles);

// Seconds; REQUIRES: at least one token (two for Tpot).
double Ttft(const RequestRecord& record);
double Tpot(const RequestRecord& record);
double E2el(const RequestRecord& record);
// Gaps between messages; tokens of one message share their time.
std::vector<double> Itls(const RequestRecord& record);

}  // namespace blockmgr

#endif  // BENCH_METRICS_H_
