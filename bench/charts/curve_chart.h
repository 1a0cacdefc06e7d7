// Curves over one another as an SVG picture.
#ifndef BENCH_CHARTS_CURVE_CHART_H_
#define BENCH_CHARTS_CURVE_CHART_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace blockmgr {

struct Curve {
  struct Sample {
    double x = 0.0;
    double y = 0.0;
    // The interval of y, drawn as a band between samples that have one.
    std::optional<std::pair<double, double>> band = std::nullopt;
  };
  std::string name;
  std::vector<Sample> samples;
};
// Curves over one another with a legend below. x starts at 0, and so does y
// unless it is logarithmic. What cannot be drawn (no number, or not above 0 on
// a logarithmic axis) interrupts its curve. Samples may come in any order.
struct CurveChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_y = false;
  std::vector<Curve> curves;
};
std::string DrawCurves(const CurveChart& chart);

}  // namespace blockmgr

#endif  // BENCH_CHARTS_CURVE_CHART_H_
