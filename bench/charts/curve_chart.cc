#include "bench/charts/curve_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include <absl/strings/str_cat.h>

#include "bench/charts/chart_axis.h"
#include "bench/charts/svg.h"

namespace blockmgr {
namespace {

constexpr char kGridColor[] = "#dddddd";
// Wider where the legend is.
constexpr double kMinPlotWidth = 600.0;
constexpr double kPlotHeight = 360.0;
constexpr double kPlotLeft = 84.0;
constexpr double kPlotTop = kChartEdge + kChartTitleSize + 17.0;
constexpr double kBottom = kPlotTop + kPlotHeight;
constexpr double kLegendTop = kBottom + 62.0;
constexpr double kSampleWidth = 36.0;
constexpr double kBandOpacity = 0.15;

// Colours that most kinds of colour blindness keep apart (Okabe and Ito),
// without the yellow that white swallows. Dashes tell further curves apart.
constexpr std::array<const char*, 7> kColors = {"#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#e69f00", "#56b4e9",
                                                "#000000"};
constexpr std::array<const char*, 4> kDashes = {"", "7 4", "2 3", "9 3 2 3"};

struct Pen {
  const char* color;
  const char* dashes;
};

Pen PenOf(size_t curve) {
  return {kColors[curve % kColors.size()],
          kDashes[curve / kColors.size() % kDashes.size()]};
}

bool IsDrawable(const CurveChart& chart, const Curve::Sample& sample) {
  return std::isfinite(sample.x) && std::isfinite(sample.y) &&
         (!chart.log_y || sample.y > 0.0);
}

struct Axes {
  Axis x;
  Axis y;
  SvgPoint Map(const Curve::Sample& sample) const {
    return {x.Map(sample.x), y.Map(sample.y)};
  }
};

// Both axes end at a round value at or past the last sample.
Axes MakeAxes(const CurveChart& chart, double plot_right) {
  double max_x = 0.0;
  double min_y = HUGE_VAL;
  double max_y = 0.0;
  for (const Curve& curve : chart.curves) {
    for (const Curve::Sample& sample : curve.samples) {
      if (!IsDrawable(chart, sample)) continue;
      max_x = std::max(max_x, sample.x);
      min_y = std::min(min_y, sample.y);
      max_y = std::max(max_y, sample.y);
      if (sample.band.has_value()) {
        max_y = std::max(max_y, sample.band->second);
      }
    }
  }
  if (max_x <= 0.0) max_x = 1.0;
  if (max_y <= 0.0) max_y = 1.0;
  Axes axes;
  axes.x = {
      .lo = 0.0, .hi = max_x, .pixel_lo = kPlotLeft, .pixel_hi = plot_right};
  axes.y = {.lo = 0.0,
            .hi = max_y,
            .pixel_lo = kBottom,
            .pixel_hi = kPlotTop,
            .log = chart.log_y};
  for (Axis* axis : {&axes.x, &axes.y}) {
    const double step = NiceCeiling(axis->hi / 10.0);
    axis->hi = step * std::ceil(axis->hi / step - 1e-9);
  }
  if (chart.log_y) {
    axes.y.hi = NiceCeiling(max_y);
    // 1 / NiceCeiling(1 / y) is the next round value below.
    axes.y.lo = 1.0 / NiceCeiling(1.0 / std::min(min_y, max_y));
    if (axes.y.lo >= axes.y.hi) axes.y.lo = axes.y.hi / 10.0;
  }
  return axes;
}

void DrawAxes(const CurveChart& chart, const Axes& axes, SvgWriter* svg) {
  const double right = axes.x.pixel_hi;
  for (const double tick : LinearTicks(axes.x.lo, axes.x.hi, 12)) {
    const double x = axes.x.Map(tick);
    svg->Line({x, kPlotTop}, {x, kBottom + 4.0}, kGridColor);
    svg->Text({x, kBottom + 18.0}, TickLabel(tick),
              {.anchor = SvgAnchor::kMiddle, .size = kChartTickSize});
  }
  const std::vector<double> ticks = chart.log_y
                                        ? LogTicks(axes.y.lo, axes.y.hi, 12)
                                        : LinearTicks(axes.y.lo, axes.y.hi, 10);
  for (const double tick : ticks) {
    const double y = axes.y.Map(tick);
    svg->Line({kPlotLeft - 4.0, y}, {right, y}, kGridColor);
    svg->Text({kPlotLeft - 8.0, y + 4.0}, TickLabel(tick),
              {.anchor = SvgAnchor::kEnd, .size = kChartTickSize});
  }
  svg->Line({kPlotLeft, kPlotTop}, {kPlotLeft, kBottom}, kChartInk);
  svg->Line({kPlotLeft, kBottom}, {right, kBottom}, kChartInk);
  svg->Text({(kPlotLeft + right) / 2.0, kBottom + 38.0}, chart.x_label,
            {.anchor = SvgAnchor::kMiddle, .size = kChartLabelSize});
  svg->Text(
      {kChartEdge + 10.0, kPlotTop + kPlotHeight / 2.0}, chart.y_label,
      {.anchor = SvgAnchor::kMiddle, .size = kChartLabelSize, .upwards = true});
}

// Draws the band of samples in a row. What is below a logarithmic axis ends at
// its lower end.
void DrawBand(const Axes& axes, const Pen& pen,
              const std::vector<Curve::Sample>& samples, SvgWriter* svg) {
  std::vector<SvgPoint> corners;
  for (const Curve::Sample& sample : samples) {
    if (!sample.band.has_value()) return;
    corners.push_back(
        axes.Map({sample.x, std::max(axes.y.lo, sample.band->second)}));
  }
  for (size_t i = samples.size(); i-- > 0;) {
    corners.push_back(
        axes.Map({samples[i].x, std::max(axes.y.lo, samples[i].band->first)}));
  }
  if (samples.size() > 1) svg->Area(corners, pen.color, kBandOpacity);
}

void DrawCurve(const CurveChart& chart, const Axes& axes, const Curve& curve,
               const Pen& pen, SvgWriter* svg) {
  std::vector<Curve::Sample> samples = curve.samples;
  std::stable_sort(
      samples.begin(), samples.end(),
      [](const Curve::Sample& a, const Curve::Sample& b) { return a.x < b.x; });
  std::vector<SvgPoint> run;
  std::vector<Curve::Sample> run_samples;
  const auto draw_run = [&] {
    DrawBand(axes, pen, run_samples, svg);
    if (run.size() > 1) svg->Polyline(run, pen.color, 2.0, pen.dashes);
    run.clear();
    run_samples.clear();
  };
  for (const Curve::Sample& sample : samples) {
    if (IsDrawable(chart, sample)) {
      run.push_back(axes.Map(sample));
      run_samples.push_back(sample);
    } else {
      draw_run();
    }
  }
  draw_run();
  for (const Curve::Sample& sample : samples) {
    if (!IsDrawable(chart, sample)) continue;
    svg->Circle(axes.Map(sample), 3.5, pen.color,
                absl::StrCat(curve.name, ": ", TickLabel(sample.x), ", ",
                             TickLabel(sample.y)));
  }
}

void DrawLegend(const CurveChart& chart, SvgWriter* svg) {
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const Pen pen = PenOf(i);
    const double y = kLegendTop + kChartLine * static_cast<double>(i);
    const std::array<SvgPoint, 2> sample = {
        {{kPlotLeft, y - 4.0}, {kPlotLeft + kSampleWidth, y - 4.0}}};
    svg->Polyline(sample, pen.color, 2.0, pen.dashes);
    svg->Circle({kPlotLeft + kSampleWidth / 2.0, y - 4.0}, 3.5, pen.color);
    svg->Text({kPlotLeft + kSampleWidth + 8.0, y}, chart.curves[i].name,
              {.size = kChartLabelSize});
  }
}

}  // namespace

std::string DrawCurves(const CurveChart& chart) {
  double right =
      std::max(kPlotLeft + kMinPlotWidth + kChartEdge,
               2.0 * kChartEdge + SvgTextWidth(chart.title, kChartTitleSize));
  for (const Curve& curve : chart.curves) {
    right = std::max(right, kPlotLeft + kSampleWidth + 8.0 + kChartEdge +
                                SvgTextWidth(curve.name, kChartLabelSize));
  }
  const double bottom =
      kLegendTop + kChartLine * static_cast<double>(chart.curves.size());
  SvgWriter svg(right, bottom, chart.title);
  svg.Text({kChartEdge, kChartEdge + kChartTitleSize - 3.0}, chart.title,
           {.size = kChartTitleSize, .bold = true});
  const Axes axes = MakeAxes(chart, right - kChartEdge);
  DrawAxes(chart, axes, &svg);
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    DrawCurve(chart, axes, chart.curves[i], PenOf(i), &svg);
  }
  DrawLegend(chart, &svg);
  return svg.Document();
}

}  // namespace blockmgr
