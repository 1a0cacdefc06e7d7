#include "bench/evict/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "bench/evict/prefixed.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/lukv_solver.h"
#include "blockmgr/eviction/score_order.h"

namespace blockmgr {
namespace {

template <typename Got>
absl::Status BadCalibration(absl::string_view field, absl::string_view expected,
                            const Got& got) {
  return Invalid("calibration: ", field, ": expected ", expected, ", got ",
                 got);
}

int64_t CountHeads(const Calibration& calibration) {
  return int64_t{calibration.num_layers} * calibration.num_heads;
}

std::string SizesText(const Calibration& calibration) {
  return absl::StrCat(calibration.num_layers, ", ", calibration.num_heads, ", ",
                      calibration.length);
}

absl::Status CheckInput(const Calibration& calibration) {
  if (calibration.num_queries < 1) {
    return BadCalibration("queries", "at least 1", calibration.num_queries);
  }
  if (calibration.num_layers < 1 || calibration.num_heads < 1 ||
      calibration.length < 1) {
    return BadCalibration("layers, KV heads, entries", "at least 1 of each",
                          SizesText(calibration));
  }
  const int64_t per_query = CountHeads(calibration) * calibration.length;
  if (std::ssize(calibration.scores) != per_query) {
    return BadCalibration("scores", absl::StrCat(per_query, " values"),
                          calibration.scores.size());
  }
  if (std::ssize(calibration.oracle) != per_query * calibration.num_queries) {
    return BadCalibration(
        "oracle", absl::StrCat(per_query * calibration.num_queries, " values"),
        calibration.oracle.size());
  }
  for (size_t i = 0; i < calibration.oracle.size(); ++i) {
    const float value = calibration.oracle[i];
    // Also true for NaN.
    if (!(value >= 0.0f) || std::isinf(value)) {
      return BadCalibration(absl::StrCat("oracle[", i, "]"),
                            "a finite number >= 0", value);
    }
  }
  // Queries that use nothing tell no head from another.
  if (std::ranges::all_of(calibration.oracle,
                          [](float value) { return value == 0.0f; })) {
    return BadCalibration("oracle", "a number above 0", "none");
  }
  return absl::OkStatus();
}

absl::Status CheckContexts(std::span<const Calibration> contexts) {
  if (contexts.empty()) return BadCalibration("contexts", "at least 1", 0);
  for (size_t i = 0; i < contexts.size(); ++i) {
    if (const absl::Status status = CheckInput(contexts[i]); !status.ok()) {
      return Prefixed(absl::StrCat("context ", i), status);
    }
    const std::string expected = SizesText(contexts.front());
    const std::string got = SizesText(contexts[i]);
    if (got == expected) continue;
    return BadCalibration(
        absl::StrCat("layers, KV heads, entries of context ", i), expected,
        got);
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const CalibrationOptions& options, int32_t length) {
  if (options.sinks < 0) {
    return BadCalibration("sinks", "at least 0", options.sinks);
  }
  if (options.window < 0) {
    return BadCalibration("window", "at least 0", options.window);
  }
  if (int64_t{options.sinks} + options.window > length) {
    return BadCalibration("sinks + window",
                          absl::StrCat("at most ", length, " entries"),
                          absl::StrCat(options.sinks, " + ", options.window));
  }
  if (options.unit < 1 || options.unit > length) {
    return BadCalibration("unit", absl::StrCat("1 to ", length), options.unit);
  }
  if (!(options.min_keep >= 0.0 && options.min_keep <= 1.0)) {
    return BadCalibration("min_keep", "0 to 1", options.min_keep);
  }
  if (options.num_steps < 1 || options.num_steps > 10'000) {
    return BadCalibration("steps", "1 to 10000", options.num_steps);
  }
  return absl::OkStatus();
}

int32_t MinUnits(const CalibrationOptions& options, int32_t length) {
  const auto share = static_cast<int32_t>(std::ceil(options.min_keep * length));
  return CeilDiv(std::max(options.sinks + options.window, share), options.unit);
}

// Totals in units, ascending, from which every head gets its minimum.
std::vector<int64_t> Totals(int64_t num_heads, int32_t length,
                            int64_t min_units,
                            const CalibrationOptions& options) {
  const double entries = static_cast<double>(num_heads) * length;
  const int64_t all = num_heads * CeilDiv(length, options.unit);
  std::vector<int64_t> totals;
  for (int32_t step = 1; step < options.num_steps; ++step) {
    const double kept = entries * step / options.num_steps;
    const int64_t total =
        std::min<int64_t>(all, std::llround(kept / options.unit));
    if (total >= num_heads * min_units) totals.push_back(total);
  }
  totals.push_back(all);
  return totals;
}

// Returns every head's entries in the order in which they are kept.
std::vector<std::vector<int32_t>> KeepOrders(
    const Calibration& calibration, const CalibrationOptions& options) {
  const auto length = static_cast<size_t>(calibration.length);
  const std::span<const float> scores = calibration.scores;
  std::vector<std::vector<int32_t>> orders;
  for (size_t begin = 0; begin < scores.size(); begin += length) {
    orders.push_back(KeepOrder(scores.subspan(begin, length), options.sinks,
                               options.window));
  }
  return orders;
}

// Sets gains to the importances of one query: by head in keeping order, summed
// by unit.
void OrderGains(const Calibration& calibration, int32_t query,
                std::span<const std::vector<int32_t>> orders,
                const CalibrationOptions& options, std::vector<float>* gains) {
  const auto length = static_cast<size_t>(calibration.length);
  std::span<const float> importances = calibration.oracle;
  importances =
      importances.subspan(static_cast<size_t>(query) * orders.size() * length);
  std::vector<float> in_order(length);
  gains->clear();
  for (const std::vector<int32_t>& order : orders) {
    for (size_t rank = 0; rank < length; ++rank) {
      in_order[rank] = importances[static_cast<size_t>(order[rank])];
    }
    if (options.oracle_order) {
      std::sort(in_order.begin() + options.sinks + options.window,
                in_order.end(), std::greater<>());
    }
    const std::vector<float> units = SumUnits(in_order, options.unit);
    gains->insert(gains->end(), units.begin(), units.end());
    importances = importances.subspan(length);
  }
}

// Returns the index in the gains at which each head begins, and the end.
std::vector<int64_t> Offsets(const Calibration& calibration, int32_t unit) {
  std::vector<int64_t> offsets = {0};
  for (int64_t head = 0; head < CountHeads(calibration); ++head) {
    offsets.push_back(offsets.back() + CeilDiv(calibration.length, unit));
  }
  return offsets;
}

// Calls visit(gains) for every query of all contexts.
template <typename Visit>
void VisitGains(std::span<const Calibration> contexts,
                const CalibrationOptions& options, const Visit& visit) {
  std::vector<float> gains;
  for (const Calibration& context : contexts) {
    const std::vector<std::vector<int32_t>> orders =
        KeepOrders(context, options);
    for (int32_t query = 0; query < context.num_queries; ++query) {
      OrderGains(context, query, orders, options, &gains);
      visit(gains);
    }
  }
}

// Returns the sums of the first 0, 1, .. of the gains.
std::vector<double> PrefixSums(std::span<const float> gains) {
  std::vector<double> sums = {0.0};
  for (const float gain : gains) sums.push_back(sums.back() + double{gain});
  return sums;
}

// Returns the largest sum of the first units of all heads, so many in all, of
// which every head has at least `min_units`.
double LargestSum(std::span<const int64_t> offsets,
                  std::span<const float> gains, int32_t min_units,
                  int64_t total) {
  const auto least = static_cast<size_t>(min_units);
  const size_t num_heads = offsets.size() - 1;
  const size_t free = static_cast<size_t>(total) - num_heads * least;
  // best[n]: of the heads so far, with n units above their minima.
  std::vector<double> best(free + 1, -HUGE_VAL);
  best[0] = 0.0;
  std::vector<double> next;
  for (size_t head = 0; head < num_heads; ++head) {
    const auto begin = static_cast<size_t>(offsets[head]);
    const auto count = static_cast<size_t>(offsets[head + 1]) - begin;
    const std::vector<double> sums = PrefixSums(gains.subspan(begin, count));
    next.assign(free + 1, -HUGE_VAL);
    for (size_t added = 0; added <= std::min(free, count - least); ++added) {
      for (size_t n = added; n <= free; ++n) {
        next[n] = std::max(next[n], best[n - added] + sums[least + added]);
      }
    }
    best.swap(next);
  }
  return best[free];
}

double SumOf(std::span<const int64_t> offsets, std::span<const float> gains,
             std::span<const int32_t> budgets) {
  double sum = 0.0;
  for (size_t head = 0; head < budgets.size(); ++head) {
    for (int32_t i = 0; i < budgets[head]; ++i) {
      sum += double{gains[static_cast<size_t>(offsets[head] + i)]};
    }
  }
  return sum;
}

// Rows of evicted fractions summed over queries, [totals, heads], as a profile:
// rho ascending from 0 to 1, each the mean of its row.
void SetRows(std::span<const double> sums, size_t num_heads,
             int32_t num_queries, LuKvProfile* profile) {
  std::vector<float> row(num_heads);
  for (size_t end = sums.size(); end > 0; end -= num_heads) {
    double mean = 0.0;
    for (size_t head = 0; head < num_heads; ++head) {
      row[head] =
          static_cast<float>(sums[end - num_heads + head] / num_queries);
      mean += row[head];
    }
    const auto rho = static_cast<float>(mean / static_cast<double>(num_heads));
    // Steps smaller than a unit are one.
    if (!profile->rho.empty() && rho <= profile->rho.back()) continue;
    profile->rho.push_back(rho);
    profile->r.insert(profile->r.end(), row.begin(), row.end());
  }
  if (profile->rho.back() == 1.0f) return;
  profile->rho.push_back(1.0f);
  profile->r.insert(profile->r.end(), num_heads, 1.0f);
}

}  // namespace

std::vector<int32_t> KeepOrder(std::span<const float> scores, int32_t sinks,
                               int32_t window) {
  const auto length = static_cast<int32_t>(scores.size());
  BM_CHECK(sinks + window <= length);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  // The window moves up behind the sinks.
  std::rotate(order.begin() + sinks, order.end() - window, order.end());
  std::stable_sort(order.begin() + sinks + window, order.end(),
                   [&](int32_t a, int32_t b) {
                     return ScoreKey(scores[static_cast<size_t>(a)]) >
                            ScoreKey(scores[static_cast<size_t>(b)]);
                   });
  return order;
}

absl::StatusOr<LuKvProfile> SolveProfile(std::span<const Calibration> contexts,
                                         const CalibrationOptions& options) {
  BM_RETURN_IF_ERROR(CheckContexts(contexts));
  const Calibration& first = contexts.front();
  const int32_t length = first.length;
  BM_RETURN_IF_ERROR(CheckOptions(options, length));
  const auto num_heads = static_cast<size_t>(CountHeads(first));
  const std::vector<int64_t> offsets = Offsets(first, options.unit);
  const std::vector<int32_t> min_units(num_heads, MinUnits(options, length));
  const std::vector<int64_t> totals =
      Totals(CountHeads(first), length, min_units.front(), options);
  std::vector<double> sums(totals.size() * num_heads);
  int32_t num_queries = 0;
  VisitGains(contexts, options, [&](std::span<const float> gains) {
    const std::vector<int32_t> budgets =
        LuKvSolver(offsets, gains, min_units).BudgetsForAll(totals);
    for (size_t i = 0; i < budgets.size(); ++i) {
      const int64_t kept =
          std::min(int64_t{budgets[i]} * options.unit, int64_t{length});
      sums[i] += static_cast<double>(length - kept) / length;
    }
    ++num_queries;
  });
  LuKvProfile profile;
  profile.num_layers = first.num_layers;
  profile.num_heads = first.num_heads;
  profile.calibration_length = length;
  profile.sinks = options.sinks;
  profile.window = options.window;
  profile.num_queries = num_queries;
  profile.min_keep = static_cast<float>(options.min_keep);
  SetRows(sums, num_heads, num_queries, &profile);
  BM_RETURN_IF_ERROR(profile.Validate());
  return profile;
}

absl::StatusOr<std::vector<double>> SolverShares(
    std::span<const Calibration> contexts, const CalibrationOptions& options,
    double keep) {
  BM_RETURN_IF_ERROR(CheckContexts(contexts));
  const Calibration& first = contexts.front();
  BM_RETURN_IF_ERROR(CheckOptions(options, first.length));
  const std::vector<int64_t> offsets = Offsets(first, options.unit);
  const int32_t least = MinUnits(options, first.length);
  const int64_t min_total = CountHeads(first) * least;
  const auto total = static_cast<int64_t>(
      std::llround(keep * static_cast<double>(offsets.back())));
  if (total < min_total || total > offsets.back()) {
    return BadCalibration("units to keep",
                          absl::StrCat(min_total, " to ", offsets.back()),
                          total);
  }
  const std::vector<int32_t> min_units(offsets.size() - 1, least);
  std::vector<double> shares;
  VisitGains(contexts, options, [&](std::span<const float> gains) {
    const std::vector<int32_t> budgets =
        LuKvSolver(offsets, gains, min_units).Budgets(total);
    const double largest = LargestSum(offsets, gains, least, total);
    // Any budgets keep all of nothing.
    shares.push_back(largest > 0.0 ? SumOf(offsets, gains, budgets) / largest
                                   : 1.0);
  });
  return shares;
}

}  // namespace blockmgr
