// Parts that all charts have: axes, their ticks, and sizes of text.
#ifndef BENCH_CHARTS_CHART_AXIS_H_
#define BENCH_CHARTS_CHART_AXIS_H_

#include <string>
#include <vector>

namespace blockmgr {

// Pixels. kChartEdge is from the edge of a picture to what is in it, kChartLine
// a line of labels with air.
inline constexpr double kChartTitleSize = 15.0;
inline constexpr double kChartLabelSize = 12.0;
inline constexpr double kChartTickSize = 11.0;
inline constexpr double kChartEdge = 16.0;
inline constexpr double kChartLine = 20.0;
inline constexpr char kChartInk[] = "#222222";

// The least of 1, 2 and 5 times powers of ten that is at least `value`.
// REQUIRES: value > 0.
double NiceCeiling(double value);
// Multiples of 1, 2 or 5 times a power of ten inside [lo, hi], at most
// `max_ticks`, ascending. REQUIRES: finite, lo < hi, max_ticks >= 2.
std::vector<double> LinearTicks(double lo, double hi, int max_ticks);
// 1, 2 and 5 times powers of ten inside [lo, hi], or only powers of ten (every
// n-th) where those would be more than `max_ticks`. REQUIRES: 0 < lo < hi.
std::vector<double> LogTicks(double lo, double hi, int max_ticks);

// A straight map from values to pixels, of logarithms if `log`.
struct Axis {
  double lo = 0.0;
  double hi = 1.0;
  double pixel_lo = 0.0;
  double pixel_hi = 1.0;
  bool log = false;

  double Map(double value) const;
};

// Six digits at most: "0.05", "2000", "1e-07".
std::string TickLabel(double value);

}  // namespace blockmgr

#endif  // BENCH_CHARTS_CHART_AXIS_H_
