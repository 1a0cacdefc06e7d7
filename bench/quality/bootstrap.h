// Bootstrap: intervals of means, of differences and of ratios over samples that
// belong together in pairs.
//
// One value is that of one context. Contexts are drawn with replacement, and
// both sides of a pair are drawn together (Efron and Tibshirani, An
// Introduction to the Bootstrap, 1993, chapter 13: percentile intervals). The
// draws follow from the number of values and nothing else, so intervals are the
// same on every machine.
//
// Thread-safe: no state.
#ifndef BENCH_QUALITY_BOOTSTRAP_H_
#define BENCH_QUALITY_BOOTSTRAP_H_

#include <cstdint>
#include <span>
#include <string>

namespace blockmgr {

// An estimate and its 95 % interval.
struct Interval {
  double mean = 0.0;
  double low = 0.0;
  double high = 0.0;

  bool Excludes(double value) const { return value < low || value > high; }
};

// Returns "0.500 [0.400, 0.600]", or "-" if the mean is NaN.
std::string TextOf(const Interval& interval);

// The number of times that the contexts are drawn anew.
inline constexpr int32_t kNumResamples = 2000;

// Returns the mean of the values. REQUIRES: at least one.
Interval BootstrapMean(std::span<const double> values);
// Returns the mean of a[i] - b[i]. REQUIRES: equal sizes, at least one.
Interval BootstrapDifference(std::span<const double> a,
                             std::span<const double> b);
// Returns the sum of a over the sum of b. Draws in which b sums to 0 are left
// out; if nothing remains, all is NaN. REQUIRES: as BootstrapDifference.
Interval BootstrapRatio(std::span<const double> a, std::span<const double> b);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_BOOTSTRAP_H_
