#include "bench/quality/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include <absl/strings/str_format.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

constexpr double kCoverage = 0.95;

// The value at a quantile, between two neighbours in proportion (type 7 of
// Hyndman and Fan, which NumPy takes).
double Quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = at - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

double Ratio(double sum_a, double sum_b) {
  return sum_b == 0.0 ? std::nan("") : sum_a / sum_b;
}

}  // namespace

std::string TextOf(const Interval& interval) {
  if (std::isnan(interval.mean)) return "-";
  return absl::StrFormat("%.3f [%.3f, %.3f]", interval.mean, interval.low,
                         interval.high);
}

Interval BootstrapRatio(std::span<const double> a, std::span<const double> b) {
  BM_CHECK(!a.empty());
  BM_CHECK(a.size() == b.size());
  // The numbers of this engine are the standard's. Those of distributions are
  // not, so indices are taken from the numbers' high halves.
  std::mt19937_64 random(a.size());
  std::vector<double> ratios;
  for (int32_t i = 0; i < kNumResamples; ++i) {
    double sum_a = 0.0;
    double sum_b = 0.0;
    for (size_t drawn = 0; drawn < a.size(); ++drawn) {
      const size_t index = (random() >> 32) * a.size() >> 32;
      sum_a += a[index];
      sum_b += b[index];
    }
    const double ratio = Ratio(sum_a, sum_b);
    if (!std::isnan(ratio)) ratios.push_back(ratio);
  }
  const double nan = std::nan("");
  if (ratios.empty()) return {.mean = nan, .low = nan, .high = nan};
  std::ranges::sort(ratios);
  const double mean = Ratio(std::accumulate(a.begin(), a.end(), 0.0),
                            std::accumulate(b.begin(), b.end(), 0.0));
  return {.mean = mean,
          .low = Quantile(ratios, (1.0 - kCoverage) / 2.0),
          .high = Quantile(ratios, (1.0 + kCoverage) / 2.0)};
}

Interval BootstrapMean(std::span<const double> values) {
  // The denominator is the number of values in every draw.
  return BootstrapRatio(values, std::vector<double>(values.size(), 1.0));
}

Interval BootstrapDifference(std::span<const double> a,
                             std::span<const double> b) {
  BM_CHECK(a.size() == b.size());
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return BootstrapMean(differences);
}

}  // namespace blockmgr
