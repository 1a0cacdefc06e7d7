// When requests are sent: open loop, decided before the run.
//
// The gaps of vLLM's client: Gamma(shape = burstiness, scale = 1 / (rate *
// burstiness)), so burstiness 1 is a Poisson process, below 1 burstier,
// infinity constant gaps; then all times are rescaled so that the last request
// leaves at n / rate.
#ifndef BENCH_ARRIVALS_H_
#define BENCH_ARRIVALS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include <absl/status/status.h>

#include "bench/workload.h"

namespace blockmgr {

// A year: later arrivals are a mistake in a unit. Virtual time, in doubles,
// resolves 10 ns until then.
inline constexpr double kMaxArrivalSeconds = 366 * 86400.0;

struct ArrivalOptions {
  // Requests per second, may be infinite (all at once). Unset: a trace keeps
  // its own timestamps, other data sets are sent at once.
  std::optional<double> request_rate = std::nullopt;
  std::optional<double> burstiness = std::nullopt;  // unset: 1
  // Traces whose timestamps lie on a grid: spread the requests of one tick
  // evenly over it.
  bool spread_ticks = false;
  // A trace keeps its own times, sped up or slowed down to request_rate.
  bool scale_trace = false;
  uint64_t seed = 0;
};

// Seconds from the start, ascending, [n]. The same arguments give the same
// times. REQUIRES: n > 0, rate > 0, burstiness > 0; both may be infinite.
std::vector<double> ArrivalTimes(int64_t n, double rate, double burstiness,
                                 uint64_t seed);

// Spreads the k requests that share a timestamp t to t + i * tick / k, where
// tick is the shortest distance of different timestamps; returns it, or 0 with
// nothing changed when there is one timestamp only.
double SpreadTicks(std::vector<WorkloadRequest>* requests);

// Gives every request its arrival. `is_trace`: the timestamps mean something.
// InvalidArgument names the flag: a rate or burstiness that is not positive, a
// rate at which the last request is later than kMaxArrivalSeconds, or an option
// without effect on this workload.
absl::Status SetArrivals(const ArrivalOptions& options, bool is_trace,
                         Workload* workload);

}  // namespace blockmgr

#endif  // BENCH_ARRIVALS_H_
