#include "bench/arrivals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Apart from the streams of lengths and tokens, which also start at the seed.
constexpr uint64_t kArrivalSalt = 0x61727269766Cull;

}  // namespace

std::vector<double> ArrivalTimes(int64_t n, double rate, double burstiness,
                                 uint64_t seed) {
  BM_CHECK(n > 0);
  BM_CHECK(rate > 0 && burstiness > 0);
  std::vector<double> times(static_cast<size_t>(n), 0.0);
  if (std::isinf(rate)) return times;
  const double end = static_cast<double>(n) / rate;
  double now = 0;
  if (std::isinf(burstiness)) {
    for (double& time : times) time = now += 1 / rate;
  } else {
    std::mt19937_64 random(SplitMix64(seed ^ kArrivalSalt));
    std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
    for (double& time : times) time = now += gap(random);
  }
  // Tiny shapes can round every gap to nothing: one burst at the end.
  for (double& time : times) time = now > 0 ? time * (end / now) : end;
  return times;
}

double SpreadTicks(std::vector<WorkloadRequest>* requests) {
  double tick = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < requests->size(); ++i) {
    const double gap = (*requests)[i].arrival_s - (*requests)[i - 1].arrival_s;
    if (gap > 0) tick = std::min(tick, gap);
  }
  if (std::isinf(tick)) return 0;
  for (size_t begin = 0; begin < requests->size();) {
    const double time = (*requests)[begin].arrival_s;
    size_t end = begin;
    while (end < requests->size() && (*requests)[end].arrival_s == time) ++end;
    for (size_t i = begin; i < end; ++i) {
      (*requests)[i].arrival_s += tick * static_cast<double>(i - begin) /
                                  static_cast<double>(end - begin);
    }
    begin = end;
  }
  return tick;
}

absl::Status SetArrivals(const ArrivalOptions& options, bool is_trace,
                         Workload* workload) {
  if (options.request_rate.has_value() && !(*options.request_rate > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request-rate: expected more than 0 or inf, got ",
                     *options.request_rate));
  }
  if (options.burstiness.has_value() && !(*options.burstiness > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "burstiness: expected more than 0 or inf, got ", *options.burstiness));
  }
  const bool replay = is_trace && !options.request_rate.has_value();
  const double rate =
      options.request_rate.value_or(std::numeric_limits<double>::infinity());
  if (options.burstiness.has_value() && (replay || std::isinf(rate))) {
    return absl::InvalidArgumentError(
        "burstiness: has no effect without a finite --request-rate");
  }
  if (options.spread_ticks && !replay) {
    return absl::InvalidArgumentError(
        "spread-ticks: has no effect unless a trace is replayed by its own "
        "timestamps (mooncake or azure, without --request-rate)");
  }
  if (replay) {
    if (options.spread_ticks) {
      workload->tick_s = SpreadTicks(&workload->requests);
    }
    return absl::OkStatus();
  }
  const std::vector<double> times =
      ArrivalTimes(static_cast<int64_t>(workload->requests.size()), rate,
                   options.burstiness.value_or(1.0), options.seed);
  for (size_t i = 0; i < times.size(); ++i) {
    workload->requests[i].arrival_s = times[i];
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
