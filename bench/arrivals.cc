#include "bench/arrivals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

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

namespace {

absl::Status CheckRate(double rate, double burstiness, size_t num_requests) {
  if (!(rate > 0)) {
    return Invalid("request-rate: expected more than 0 or inf, got ", rate);
  }
  if (!(burstiness > 0)) {
    return Invalid("burstiness: expected more than 0 or inf, got ", burstiness);
  }
  const double least = static_cast<double>(num_requests) / kMaxArrivalSeconds;
  if (rate >= least) return absl::OkStatus();
  return Invalid("request-rate: expected at least ", least,
                 ", at which the last of ", num_requests,
                 " requests is sent after a year, got ", rate);
}

// Returns the error for a flag that would have no effect, or null.
const char* Ineffective(const ArrivalOptions& options, bool is_trace) {
  const bool has_rate =
      options.request_rate.has_value() && !std::isinf(*options.request_rate);
  const bool scales = is_trace && has_rate && options.scale_trace;
  const bool replays = is_trace && !options.request_rate.has_value();
  if (options.scale_trace && !scales) {
    return "scale-trace: has no effect without a trace (mooncake or azure) and "
           "a finite --request-rate";
  }
  if (options.burstiness.has_value() && (scales || !has_rate)) {
    return "burstiness: has no effect without a finite --request-rate, or with "
           "--scale-trace";
  }
  if (options.spread_ticks && !replays && !scales) {
    return "spread-ticks: has no effect unless a trace (mooncake or azure) "
           "keeps its own timestamps: without --request-rate, or with "
           "--scale-trace";
  }
  return nullptr;
}

// Times the trace so that the last request is sent at n / rate.
absl::Status ScaleTrace(double rate, Workload* workload) {
  std::vector<WorkloadRequest>& requests = workload->requests;
  const double last_s = requests.back().arrival_s;
  if (last_s == 0) {
    return absl::InvalidArgumentError(
        "scale-trace: expected a trace whose timestamps differ");
  }
  const double end_s = static_cast<double>(requests.size()) / rate;
  // The quotient first: it is at most 1, however short the trace.
  for (WorkloadRequest& request : requests) {
    request.arrival_s = request.arrival_s / last_s * end_s;
  }
  workload->tick_s = workload->tick_s / last_s * end_s;
  return absl::OkStatus();
}

}  // namespace

absl::Status SetArrivals(const ArrivalOptions& options, bool is_trace,
                         Workload* workload) {
  const double rate =
      options.request_rate.value_or(std::numeric_limits<double>::infinity());
  const double burstiness = options.burstiness.value_or(1.0);
  BM_RETURN_IF_ERROR(CheckRate(rate, burstiness, workload->requests.size()));
  const char* const ineffective = Ineffective(options, is_trace);
  if (ineffective != nullptr) return absl::InvalidArgumentError(ineffective);
  if (options.spread_ticks) {
    workload->tick_s = SpreadTicks(&workload->requests);
  }
  if (options.scale_trace) return ScaleTrace(rate, workload);
  if (is_trace && !options.request_rate.has_value()) return absl::OkStatus();
  const std::vector<double> times =
      ArrivalTimes(static_cast<int64_t>(workload->requests.size()), rate,
                   burstiness, options.seed);
  for (size_t i = 0; i < times.size(); ++i) {
    workload->requests[i].arrival_s = times[i];
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
