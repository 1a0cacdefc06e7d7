// RequestMetrics: counts of how long requests took and how they ended, for
// operators. Plain data: the core keeps it, and GetStats copies it.
//
// Cost: an observation is a search among 19 bounds. A request makes four
// observations, a step makes one.
#ifndef SCHEDULER_SERVER_REQUEST_METRICS_H_
#define SCHEDULER_SERVER_REQUEST_METRICS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <absl/status/status.h>

#include "scheduler/request.h"

namespace blockmgr {

// Counts of durations. Bucket i counts durations above kBounds[i - 1] and up to
// kBounds[i] seconds. The last bucket counts all longer ones.
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
  // Counts a submission that the core has answered with an error.
  void CountRefusal(const absl::Status& status) {
    if (!status.ok()) ++refused[static_cast<size_t>(status.code())];
  }

  // From submission to the first step.
  DurationHistogram queue;
  // From submission to the first token.
  DurationHistogram first_token;
  // From the first token to the last, divided by the number of tokens after the
  // first. Only for requests that ended by length or a stop token.
  DurationHistogram output_token;
  // From submission to the end, for the same requests.
  DurationHistogram request;
  // From the issue of a step's plan to its result. The time includes that of
  // earlier steps which the engine had to finish first.
  DurationHistogram step;

  // Indexed by FinishReason.
  std::array<uint64_t, kNumFinishReasons> finished{};
  // Submissions that the core refused, by absl::StatusCode.
  static constexpr size_t kNumStatusCodes =
      static_cast<size_t>(absl::StatusCode::kUnauthenticated) + 1;
  std::array<uint64_t, kNumStatusCodes> refused{};
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_REQUEST_METRICS_H_
