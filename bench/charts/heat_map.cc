#include "bench/charts/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/charts/chart_axis.h"
#include "bench/charts/svg.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

std::string HeatColor(double share) {
  // Lightness falls evenly, so the order survives grey prints and most kinds of
  // colour blindness.
  constexpr std::array<std::array<double, 3>, 4> kStops = {
      {{244, 247, 251}, {148, 190, 222}, {49, 115, 178}, {10, 35, 80}}};
  constexpr double kSegments = static_cast<double>(kStops.size() - 1);
  const double at = std::clamp(share, 0.0, 1.0) * kSegments;
  const size_t below = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const double weight = at - static_cast<double>(below);
  std::string color = "#";
  for (size_t channel = 0; channel < 3; ++channel) {
    const double value = (1.0 - weight) * kStops[below][channel] +
                         weight * kStops[below + 1][channel];
    absl::StrAppendFormat(&color, "%02x", std::lround(value));
  }
  return color;
}

namespace {

// Every n-th index gets a label, so that they stay `gap` pixels apart.
int32_t LabelStep(double cell, double gap) {
  if (cell >= gap) return 1;
  return static_cast<int32_t>(std::lround(NiceCeiling(gap / cell)));
}

// Where everything of a heat map goes.
struct HeatLayout {
  static constexpr double kLeft = 62.0;    // row labels and name
  static constexpr double kBarGap = 24.0;  // from the grid to the colour bar
  static constexpr double kBarWidth = 16.0;
  double cell_width;
  double cell_height;
  double grid_width;
  double grid_height;
  double top;         // of the first panel's title
  double panel_step;  // from one panel to the next
  double width;
  double height;
  int32_t max_value = 1;

  explicit HeatLayout(const HeatMap& map)
      : cell_width(std::clamp(560.0 / map.num_columns, 6.0, 56.0)),
        cell_height(std::clamp(480.0 / map.num_rows, 6.0, 30.0)),
        grid_width(cell_width * map.num_columns),
        grid_height(cell_height * map.num_rows),
        top(kChartEdge + kChartTitleSize + 9.0),
        // Title, grid, column labels, their name, air.
        panel_step(kChartLine + grid_height + 2.0 * kChartLine + 12.0) {
    double text = SvgTextWidth(map.title, kChartTitleSize);
    for (const HeatMap::Panel& panel : map.panels) {
      text = std::max(text, SvgTextWidth(panel.title, kChartLabelSize));
      for (const int32_t value : panel.values) {
        max_value = std::max(max_value, value);
      }
    }
    const double bar_labels =
        8.0 + std::max(SvgTextWidth(absl::StrCat(max_value), kChartTickSize),
                       SvgTextWidth(map.value_name, kChartTickSize));
    width = std::max(kLeft + grid_width + kBarGap + kBarWidth + bar_labels,
                     kChartEdge + text) +
            kChartEdge;
    height = top + panel_step * static_cast<double>(map.panels.size());
  }
  double bar_x() const { return kLeft + grid_width + kBarGap; }
};

void DrawCells(const HeatMap& map, const HeatLayout& layout,
               const HeatMap::Panel& panel, double grid_top, SvgWriter* svg) {
  const bool has_numbers =
      layout.cell_height >= 16.0 &&
      SvgTextWidth(absl::StrCat(layout.max_value), kChartTickSize) + 4.0 <=
          layout.cell_width;
  for (int32_t row = 0; row < map.num_rows; ++row) {
    for (int32_t column = 0; column < map.num_columns; ++column) {
      const int32_t value =
          panel.values[static_cast<size_t>(row) * map.num_columns + column];
      const double share = static_cast<double>(value) / layout.max_value;
      const SvgPoint corner = {HeatLayout::kLeft + column * layout.cell_width,
                               grid_top + row * layout.cell_height};
      svg->Rect(corner, {layout.cell_width, layout.cell_height},
                HeatColor(share),
                absl::StrCat(map.row_name, " ", row, ", ", map.column_name, " ",
                             column, ": ", value, " ", map.value_name));
      if (!has_numbers) continue;
      svg->Text({corner.x + layout.cell_width / 2,
                 corner.y + layout.cell_height / 2 + 4.0},
                absl::StrCat(value),
                {.anchor = SvgAnchor::kMiddle,
                 .size = kChartTickSize,
                 .fill = share > 0.45 ? "#ffffff" : kChartInk});
    }
  }
}

void DrawHeatAxes(const HeatMap& map, const HeatLayout& layout, double grid_top,
                  SvgWriter* svg) {
  const double bottom = grid_top + layout.grid_height;
  const int32_t row_step = LabelStep(layout.cell_height, 14.0);
  for (int32_t row = 0; row < map.num_rows; row += row_step) {
    svg->Text({HeatLayout::kLeft - 6.0,
               grid_top + (row + 0.5) * layout.cell_height + 4.0},
              absl::StrCat(row),
              {.anchor = SvgAnchor::kEnd, .size = kChartTickSize});
  }
  const int32_t column_step = LabelStep(layout.cell_width, 26.0);
  for (int32_t column = 0; column < map.num_columns; column += column_step) {
    svg->Text(
        {HeatLayout::kLeft + (column + 0.5) * layout.cell_width, bottom + 15.0},
        absl::StrCat(column),
        {.anchor = SvgAnchor::kMiddle, .size = kChartTickSize});
  }
  svg->Text({HeatLayout::kLeft + layout.grid_width / 2, bottom + 33.0},
            map.column_name,
            {.anchor = SvgAnchor::kMiddle, .size = kChartLabelSize});
  svg->Text(
      {kChartEdge + 10.0, grid_top + layout.grid_height / 2}, map.row_name,
      {.anchor = SvgAnchor::kMiddle, .size = kChartLabelSize, .upwards = true});
}

// The scale of colours, next to the first grid and as high.
void DrawColorBar(const HeatMap& map, const HeatLayout& layout, double grid_top,
                  SvgWriter* svg) {
  constexpr int kSteps = 64;
  const double bottom = grid_top + layout.grid_height;
  const Axis axis = {.lo = 0.0,
                     .hi = static_cast<double>(layout.max_value),
                     .pixel_lo = bottom,
                     .pixel_hi = grid_top};
  const double step = layout.grid_height / kSteps;
  for (int i = 0; i < kSteps; ++i) {
    // Overlapping by a hair, or viewers show the seams.
    svg->Rect({layout.bar_x(), bottom - (i + 1) * step},
              {HeatLayout::kBarWidth, step + (i == 0 ? 0.0 : 0.5)},
              HeatColor((i + 0.5) / kSteps));
  }
  const int max_ticks =
      std::clamp(static_cast<int>(layout.grid_height / 22.0), 2, 8);
  for (const double tick : LinearTicks(axis.lo, axis.hi, max_ticks)) {
    if (tick != std::floor(tick)) continue;
    const double x = layout.bar_x() + HeatLayout::kBarWidth;
    svg->Line({x, axis.Map(tick)}, {x + 4.0, axis.Map(tick)}, kChartInk);
    svg->Text({x + 7.0, axis.Map(tick) + 4.0}, TickLabel(tick),
              {.size = kChartTickSize});
  }
  svg->Text({layout.bar_x() - 4.0, bottom + 15.0}, map.value_name,
            {.size = kChartTickSize});
}

}  // namespace

std::string DrawHeatMap(const HeatMap& map) {
  BM_CHECK(map.num_rows > 0);
  BM_CHECK(map.num_columns > 0);
  BM_CHECK(!map.panels.empty());
  const HeatLayout layout(map);
  SvgWriter svg(layout.width, layout.height, map.title);
  svg.Text({kChartEdge, kChartEdge + kChartTitleSize - 3.0}, map.title,
           {.size = kChartTitleSize, .bold = true});
  for (size_t i = 0; i < map.panels.size(); ++i) {
    const HeatMap::Panel& panel = map.panels[i];
    BM_CHECK(static_cast<int64_t>(panel.values.size()) ==
             int64_t{map.num_rows} * map.num_columns);
    const double top = layout.top + layout.panel_step * static_cast<double>(i);
    const double grid_top = top + kChartLine;
    svg.Text({kChartEdge, top + 12.0}, panel.title, {.size = kChartLabelSize});
    DrawCells(map, layout, panel, grid_top, &svg);
    DrawHeatAxes(map, layout, grid_top, &svg);
    DrawColorBar(map, layout, grid_top, &svg);
  }
  return svg.Document();
}

}  // namespace blockmgr
