#include "bench/rate_search.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMaxHalvings = 10;   // to a thousandth
constexpr int kMaxDoublings = 20;  // a million times: as good as all at once

class Search {
 public:
  Search(double good_percent, const TrialRun& run)
      : good_percent_(good_percent), run_(run) {}

  absl::StatusOr<RateSearch> Find() {
    BM_ASSIGN_OR_RETURN(const bool holds_at_once, Holds(kInfinity));
    if (holds_at_once) return std::move(search_);
    const double throughput = search_.trials.front().throughput;
    if (throughput <= 0) {
      return absl::FailedPreconditionError(
          "find-max-rate: no request completed when all were sent at once");
    }
    BM_RETURN_IF_ERROR(Enclose(RoundRate(throughput)));
    while (std::isfinite(*search_.failing_rate) &&
           *search_.failing_rate > search_.max_rate * (1 + kRateResolution)) {
      const double middle =
          RoundRate(std::sqrt(search_.max_rate * *search_.failing_rate));
      // Three digits are finer than the resolution.
      BM_CHECK(middle > search_.max_rate && middle < *search_.failing_rate);
      BM_RETURN_IF_ERROR(Holds(middle).status());
    }
    return std::move(search_);
  }

 private:
  // Moves an end of the interval.
  absl::StatusOr<bool> Holds(double rate) {
    BM_ASSIGN_OR_RETURN(const RateTrial trial, run_(rate));
    search_.trials.push_back(trial);
    const bool holds = trial.good_percent() >= good_percent_;
    if (holds) {
      search_.max_rate = rate;
    } else {
      search_.failing_rate = rate;
    }
    return holds;
  }

  // Finds a rate at which the goal holds and twice that where it does not.
  absl::Status Enclose(double rate) {
    BM_ASSIGN_OR_RETURN(bool holds, Holds(rate));
    if (holds) {
      for (int i = 0; i < kMaxDoublings && holds; ++i) {
        rate = RoundRate(rate * 2);
        BM_ASSIGN_OR_RETURN(holds, Holds(rate));
      }
      return absl::OkStatus();
    }
    for (int i = 0; i < kMaxHalvings; ++i) {
      rate = RoundRate(rate / 2);
      BM_ASSIGN_OR_RETURN(holds, Holds(rate));
      if (holds) return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat(
        "find-max-rate: expected a rate at which ", good_percent_,
        " % of the requests are within --goodput, got ",
        search_.trials.back().good_percent(), " % at ", rate,
        " requests/s, a thousandth of what gets done when all are sent at "
        "once"));
  }

  const double good_percent_;
  const TrialRun& run_;
  RateSearch search_;
};

}  // namespace

double RoundRate(double rate) {
  BM_CHECK(std::isfinite(rate) && rate > 0);
  return std::strtod(absl::StrFormat("%.2e", rate).c_str(), nullptr);
}

absl::StatusOr<RateSearch> FindMaxRate(double good_percent,
                                       const TrialRun& run) {
  return Search(good_percent, run).Find();
}

}  // namespace blockmgr
