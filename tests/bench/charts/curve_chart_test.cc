#include "bench/charts/curve_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/charts/xml_elements.h"

namespace blockmgr {
namespace {

using ::testing::Contains;

CurveChart Example(bool log_y) {
  CurveChart chart;
  chart.title = "Perturbation";
  chart.x_label = "keep ratio";
  chart.y_label = "|y - y^| / |y|";
  chart.log_y = log_y;
  chart.curves = {{"snapkv <a>", {{0.4, 0.02}, {0.1, 0.4}, {0.2, 0.1}}},
                  {"snapkv | adakv", {{0.1, 0.3}, {0.2, 0.05}, {0.4, 0.01}}}};
  return chart;
}

std::vector<XmlElement> Draw(const CurveChart& chart) {
  std::vector<XmlElement> elements = XmlReader::Read(DrawCurves(chart));
  ExpectPicture(elements);
  return elements;
}

// The value that a tick label stands for, by its pixel.
struct Ticks {
  std::vector<std::pair<double, double>> x;  // pixel, value
  std::vector<std::pair<double, double>> y;

  explicit Ticks(const std::vector<XmlElement>& elements) {
    for (size_t i = 0; i + 1 < elements.size(); ++i) {
      const XmlElement& line = elements[i];
      if (line.name != "line" || elements[i + 1].name != "text") continue;
      if (line.attributes.at("stroke") != "#dddddd") continue;
      const double value = std::stod(elements[i + 1].text);
      if (line.Number("x1") == line.Number("x2")) {
        x.emplace_back(line.Number("x1"), value);
      } else {
        y.emplace_back(line.Number("y1"), value);
      }
    }
  }
  // Through the outermost two ticks.
  static double ValueAt(const std::vector<std::pair<double, double>>& ticks,
                        double pixel, bool log) {
    const auto [first_pixel, first] = ticks.front();
    const auto [last_pixel, last] = ticks.back();
    const double share = (pixel - first_pixel) / (last_pixel - first_pixel);
    return log ? first * std::pow(last / first, share)
               : first + share * (last - first);
  }
};

// Dots with tooltips, that is of samples and not of the legend.
std::vector<std::pair<XmlElement, std::string>> Dots(
    const std::vector<XmlElement>& elements) {
  std::vector<std::pair<XmlElement, std::string>> dots;
  for (size_t i = 0; i + 1 < elements.size(); ++i) {
    if (elements[i].name == "circle" && elements[i + 1].name == "title") {
      dots.emplace_back(elements[i], elements[i + 1].text);
    }
  }
  return dots;
}

class CurveChartTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Axes, CurveChartTest, ::testing::Bool(),
                         [](const auto& axis) {
                           return axis.param ? "Log" : "Linear";
                         });

TEST_P(CurveChartTest, SamplesAreWhereTheAxesSay) {
  const CurveChart chart = Example(GetParam());
  const std::vector<XmlElement> elements = Draw(chart);
  const Ticks ticks(elements);
  ASSERT_GE(ticks.x.size(), 3u);
  ASSERT_GE(ticks.y.size(), 3u);
  const auto dots = Dots(elements);
  ASSERT_EQ(dots.size(), 6u);
  // Ascending by x, whatever the order they came in.
  const std::vector<std::pair<double, double>> expected = {
      {0.1, 0.4}, {0.2, 0.1},  {0.4, 0.02},
      {0.1, 0.3}, {0.2, 0.05}, {0.4, 0.01}};
  for (size_t i = 0; i < dots.size(); ++i) {
    const auto& [dot, tooltip] = dots[i];
    EXPECT_NEAR(Ticks::ValueAt(ticks.x, dot.Number("cx"), false),
                expected[i].first, 1e-4);
    EXPECT_NEAR(Ticks::ValueAt(ticks.y, dot.Number("cy"), GetParam()),
                expected[i].second, 1e-4);
    EXPECT_EQ(tooltip,
              absl::StrCat(chart.curves[i / 3].name, ": ", expected[i].first,
                           ", ", expected[i].second));
  }
}

TEST_P(CurveChartTest, LinesGoThroughTheirDots) {
  const std::vector<XmlElement> elements = Draw(Example(GetParam()));
  const auto dots = Dots(elements);
  std::vector<std::string> expected;
  for (size_t curve = 0; curve < 2; ++curve) {
    std::string points;
    for (size_t i = 0; i < 3; ++i) {
      const XmlElement& dot = dots[3 * curve + i].first;
      absl::StrAppend(&points, i == 0 ? "" : " ", dot.attributes.at("cx"), ",",
                      dot.attributes.at("cy"));
    }
    expected.push_back(points);
  }
  const std::vector<XmlElement> lines = Named(elements, "polyline");
  // Two curves, then two samples in the legend.
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].attributes.at("points"), expected[0]);
  EXPECT_EQ(lines[1].attributes.at("points"), expected[1]);
  EXPECT_EQ(lines[0].attributes.at("stroke"), lines[2].attributes.at("stroke"));
  EXPECT_EQ(lines[1].attributes.at("stroke"), lines[3].attributes.at("stroke"));
  EXPECT_NE(lines[0].attributes.at("stroke"), lines[1].attributes.at("stroke"));
}

TEST_P(CurveChartTest, NamesEverything) {
  const CurveChart chart = Example(GetParam());
  std::vector<std::string> texts;
  for (const XmlElement& text : Named(Draw(chart), "text")) {
    texts.push_back(text.text);
  }
  for (const std::string& text : {chart.title, chart.x_label, chart.y_label,
                                  chart.curves[0].name, chart.curves[1].name}) {
    EXPECT_THAT(texts, Contains(text));
  }
}

TEST(CurveChartTest, WhatCannotBeDrawnInterruptsItsCurve) {
  CurveChart chart = Example(true);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  chart.curves = {{"zero in the middle",
                   {{0.1, 1}, {0.2, 0.5}, {0.3, 0.0}, {0.4, 0.3}, {0.5, 0.2}}},
                  {"no number at the end", {{0.1, 1}, {0.2, 0.5}, {0.3, nan}}},
                  {"one dot", {{0.1, 1}}},
                  {"nothing", {}}};
  const std::vector<XmlElement> elements = Draw(chart);
  EXPECT_EQ(Dots(elements).size(), 4u + 2u + 1u);
  // Two runs, one run, and four samples of the legend.
  EXPECT_EQ(Named(elements, "polyline").size(), 2u + 1u + 4u);
}

TEST_P(CurveChartTest, DrawsWithoutAnythingToDraw) {
  CurveChart chart;
  chart.log_y = GetParam();
  EXPECT_TRUE(Dots(Draw(chart)).empty());
  chart.curves = {{"zeros", {{0.5, 0.0}, {1.0, 0.0}}}};
  EXPECT_EQ(Dots(Draw(chart)).size(), GetParam() ? 0u : 2u);
}

TEST(CurveChartTest, ManyCurvesLookDifferent) {
  CurveChart chart = Example(false);
  chart.curves.clear();
  for (int i = 0; i < 20; ++i) {
    chart.curves.push_back(
        {absl::StrCat("curve ", i), {{0.1, 1.0 + i}, {0.2, 0.5 + i}}});
  }
  std::set<std::pair<std::string, std::string>> pens;
  for (const XmlElement& line : Named(Draw(chart), "polyline")) {
    const auto dashes = line.attributes.find("stroke-dasharray");
    pens.emplace(line.attributes.at("stroke"),
                 dashes == line.attributes.end() ? "" : dashes->second);
  }
  EXPECT_EQ(pens.size(), 20u);
}

TEST(CurveChartTest, LongNamesWidenThePicture) {
  CurveChart chart = Example(false);
  chart.curves[0].name = std::string(200, 'm');
  Draw(chart);
}

// The band's corners, first along the upper side, are where the dots of a curve
// through them would be.
TEST_P(CurveChartTest, BandsAreWhereTheAxesSay) {
  CurveChart chart = Example(GetParam());
  chart.curves.resize(1);
  chart.curves[0].samples = {{0.4, 0.25, {{0.2, 0.3}}},
                             {0.1, 0.4, {{0.3, 0.5}}}};
  const std::vector<XmlElement> elements = Draw(chart);
  const auto area = std::ranges::find(elements, "polygon", &XmlElement::name);
  ASSERT_NE(area, elements.end());
  std::vector<std::pair<double, double>> corners;
  for (const absl::string_view point :
       absl::StrSplit(area->attributes.at("points"), ' ')) {
    const std::pair<std::string, std::string> xy = absl::StrSplit(point, ',');
    corners.emplace_back(std::stod(xy.first), std::stod(xy.second));
  }
  const Ticks ticks(elements);
  const std::vector<std::pair<double, double>> expected = {
      {0.1, 0.5}, {0.4, 0.3}, {0.4, 0.2}, {0.1, 0.3}};
  ASSERT_EQ(corners.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(Ticks::ValueAt(ticks.x, corners[i].first, false),
                expected[i].first, 1e-3);
    EXPECT_NEAR(Ticks::ValueAt(ticks.y, corners[i].second, GetParam()),
                expected[i].second, 1e-3);
  }
}

TEST(CurveChartBandTest, NoBandWithoutIntervals) {
  for (const XmlElement& element : Draw(Example(false))) {
    EXPECT_NE(element.name, "polygon");
  }
}

}  // namespace
}  // namespace blockmgr
