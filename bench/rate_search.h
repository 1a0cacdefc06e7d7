// The highest request rate at which a goal holds: what a server can be sold as.
//
// A goal (--goodput) holds at a rate if a given part of the requests of a run
// meets it. All at once comes first, and says how much gets done at most; from
// there rates are doubled or halved until the goal holds at one and not at the
// next, and then the interval is halved, geometrically, until its ends are
// within kRateResolution of each other. Rates are rounded to three digits, so
// that any of the runs can be had again with --request-rate. That the goal
// holds at all lower rates is taken for granted: near its limit it may come and
// go.
//
// Deterministic where the runs are.
#ifndef BENCH_RATE_SEARCH_H_
#define BENCH_RATE_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

inline constexpr double kRateResolution = 0.02;

// The result of a run at one request rate.
struct RateTrial {
  double rate = 0;  // requests per second, may be infinite
  int64_t num_requests = 0;
  int64_t good = 0;       // within the goal
  double throughput = 0;  // completed requests per second

  double good_percent() const {
    return 100.0 * static_cast<double>(good) /
           static_cast<double>(num_requests);
  }
};

struct RateSearch {
  double max_rate = 0;  // the highest at which the goal held
  // The lowest above it at which it did not, perhaps infinite; unset if it held
  // with all at once.
  std::optional<double> failing_rate;
  std::vector<RateTrial> trials;  // in order of the runs
};

// Runs the workload at a rate.
using TrialRun = std::function<absl::StatusOr<RateTrial>(double rate)>;

// The search above; about ten runs. `good_percent`: of the requests of a run.
// Errors: those of a run; NotFound if the goal does not even hold at a
// thousandth of what gets done when all are sent at once.
absl::StatusOr<RateSearch> FindMaxRate(double good_percent,
                                       const TrialRun& run);

// Rounds `rate` to three significant digits. REQUIRES: finite, above 0.
double RoundRate(double rate);

}  // namespace blockmgr

#endif  // BENCH_RATE_SEARCH_H_
