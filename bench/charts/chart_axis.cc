#include "bench/charts/chart_axis.h"

#include <cmath>
#include <cstdint>

#include <absl/strings/str_format.h>

#include "blockmgr/base/check.h"

namespace blockmgr {

double NiceCeiling(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // A hair of tolerance: 0.3 / 0.1 is above 3.
    if (factor * power >= value * (1.0 - 1e-12)) return factor * power;
  }
  return 10.0 * power;
}

std::vector<double> LinearTicks(double lo, double hi, int max_ticks) {
  BM_CHECK(lo < hi);
  BM_CHECK(max_ticks >= 2);
  double step = NiceCeiling((hi - lo) / max_ticks);
  std::vector<double> ticks;
  while (true) {
    const double first = std::ceil(lo / step - 1e-9);
    const double last = std::floor(hi / step + 1e-9);
    if (last - first + 1.0 > max_ticks) {
      step = NiceCeiling(1.5 * step);
      continue;
    }
    // + 0.0 turns -0, which would be printed as such, into 0.
    const auto num_ticks = static_cast<int64_t>(last - first) + 1;
    for (int64_t i = 0; i < num_ticks; ++i) {
      ticks.push_back((first + static_cast<double>(i)) * step + 0.0);
    }
    return ticks;
  }
}

std::vector<double> LogTicks(double lo, double hi, int max_ticks) {
  BM_CHECK(0.0 < lo && lo < hi);
  const double low = lo * (1.0 - 1e-9);
  const double high = hi * (1.0 + 1e-9);
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> ticks;
  for (int power = first; power <= last; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if (low <= tick && tick <= high) ticks.push_back(tick);
    }
  }
  if (static_cast<int>(ticks.size()) <= max_ticks) return ticks;
  const int every = 1 + (last - first) / max_ticks;
  ticks.clear();
  for (int power = first; power <= last; ++power) {
    const double tick = std::pow(10.0, power);
    if (power % every == 0 && low <= tick && tick <= high) {
      ticks.push_back(tick);
    }
  }
  return ticks;
}

double Axis::Map(double value) const {
  const auto position = [this](double v) { return log ? std::log(v) : v; };
  const double share =
      (position(value) - position(lo)) / (position(hi) - position(lo));
  return pixel_lo + share * (pixel_hi - pixel_lo);
}

std::string TickLabel(double value) { return absl::StrFormat("%.6g", value); }

}  // namespace blockmgr
