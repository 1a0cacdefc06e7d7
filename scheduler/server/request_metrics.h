// How long requests took and how they ended, as counts: what operators watch.
// Plain data, kept by the core, copied out by GetStats.
//
// Cost: a search among 19 bounds an observation; a request makes four in all, a
// step one.
#ifndef SCHEDULER_SERVER_REQUEST_METRICS_H_
#define SCHEDULER_SERVER_REQUEST_METRICS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <absl/status/status.h>

#include "scheduler/request.h"

namespace blockmgr {

// Counts of durations. Bucket i has those of at most kBounds[i] seconds that
// bucket i - 1 has not; the last one has all that are longer.
struct DurationHistogram {
  static constexpr std::array<double, 19> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
      2.5,   5,      10,    25,   50,    100,  250, 500,  1000};

  void Observe(double seconds) {
    const auto* const bound =
        std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++counts[static_cast<size_t>(bound - kBounds.begin())];
    sum_seconds += seconds;
  }

  std::array<uint64_t, kBounds.size() + 1> counts{};
  double sum_seconds = 0;
};

struct RequestMetrics {
  // From submission to the first step.
  DurationHistogram queue;
  // From submission to the first token.
  DurationHistogram first_token;
  // From the first token to the last, over the tokens after the first; and from
  // submission to the end. Of requests that ended by length or a stop token.
  DurationHistogram output_token;
  DurationHistogram request;
  // From the issue of a step's plan to its result: the engine, and the steps it
  // had before.
  DurationHistogram step;

  std::array<uint64_t, kNumFinishReasons> finished{};  // by FinishReason
  // Submissions that the core refused, by absl::StatusCode.
  static constexpr size_t kNumStatusCodes =
      static_cast<size_t>(absl::StatusCode::kUnauthenticated) + 1;
  std::array<uint64_t, kNumStatusCodes> refused{};
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_REQUEST_METRICS_H_
