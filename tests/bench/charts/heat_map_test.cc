#include "bench/charts/heat_map.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/charts/xml_elements.h"

namespace blockmgr {
namespace {

using ::testing::Contains;

HeatMap Example(int32_t num_rows, int32_t num_columns, int num_panels) {
  HeatMap map;
  map.title = "Entries & more";
  map.row_name = "layer";
  map.column_name = "KV head";
  map.value_name = "entries";
  map.num_rows = num_rows;
  map.num_columns = num_columns;
  for (int panel = 0; panel < num_panels; ++panel) {
    HeatMap::Panel& last = map.panels.emplace_back();
    last.title = absl::StrCat("snapkv | panel ", panel);
    for (int32_t i = 0; i < num_rows * num_columns; ++i) {
      last.values.push_back(100 * i + panel);
    }
  }
  return map;
}

struct Cell {
  XmlElement rect;
  std::string tooltip;
};

// Rectangles with a tooltip.
std::vector<Cell> Cells(const std::vector<XmlElement>& elements) {
  std::vector<Cell> cells;
  for (size_t i = 0; i + 1 < elements.size(); ++i) {
    if (elements[i].name == "rect" && elements[i + 1].name == "title") {
      cells.push_back({elements[i], elements[i + 1].text});
    }
  }
  return cells;
}

std::vector<std::string> Texts(const std::vector<XmlElement>& elements) {
  std::vector<std::string> texts;
  for (const XmlElement& element : Named(elements, "text")) {
    texts.push_back(element.text);
  }
  return texts;
}

TEST(HeatMapTest, ColorsDarkenAndAreClamped) {
  double lightness = 256.0;
  for (int i = 0; i <= 100; ++i) {
    const std::string color = HeatColor(i / 100.0);
    ASSERT_EQ(color.size(), 7u);
    const double red = std::stoi(color.substr(1, 2), nullptr, 16);
    const double green = std::stoi(color.substr(3, 2), nullptr, 16);
    const double blue = std::stoi(color.substr(5, 2), nullptr, 16);
    const double now = 0.299 * red + 0.587 * green + 0.114 * blue;
    EXPECT_LT(now, lightness);
    lightness = now;
  }
  EXPECT_EQ(HeatColor(-1.0), HeatColor(0.0));
  EXPECT_EQ(HeatColor(2.0), HeatColor(1.0));
}

TEST(HeatMapTest, HasOneCellPerValueWhereItBelongs) {
  const HeatMap map = Example(3, 5, 2);
  const std::vector<XmlElement> elements = XmlReader::Read(DrawHeatMap(map));
  ExpectPicture(elements);
  const std::vector<Cell> cells = Cells(elements);
  ASSERT_EQ(cells.size(), 30u);
  const double width = cells[0].rect.Number("width");
  const double height = cells[0].rect.Number("height");
  for (size_t panel = 0; panel < 2; ++panel) {
    const XmlElement& origin = cells[15 * panel].rect;
    for (size_t row = 0; row < 3; ++row) {
      for (size_t column = 0; column < 5; ++column) {
        const Cell& cell = cells[15 * panel + 5 * row + column];
        EXPECT_NEAR(cell.rect.Number("x"),
                    origin.Number("x") + width * static_cast<double>(column),
                    0.02);
        EXPECT_NEAR(cell.rect.Number("y"),
                    origin.Number("y") + height * static_cast<double>(row),
                    0.02);
        const int32_t value = map.panels[panel].values[5 * row + column];
        EXPECT_EQ(cell.tooltip, absl::StrCat("layer ", row, ", KV head ",
                                             column, ": ", value, " entries"));
        // One scale for both panels.
        EXPECT_EQ(cell.rect.attributes.at("fill"), HeatColor(value / 1401.0));
      }
    }
  }
}

TEST(HeatMapTest, NamesEverything) {
  const std::vector<std::string> texts =
      Texts(XmlReader::Read(DrawHeatMap(Example(3, 5, 2))));
  for (const char* text :
       {"Entries & more", "snapkv | panel 0", "snapkv | panel 1", "layer",
        "KV head", "entries", "0", "4", "1400", "1401", "1000"}) {
    EXPECT_THAT(texts, Contains(text));
  }
}

TEST(HeatMapTest, ColorBarTicksAreAtTheirValues) {
  const std::vector<XmlElement> elements =
      XmlReader::Read(DrawHeatMap(Example(6, 8, 1)));
  const std::vector<Cell> cells = Cells(elements);
  const double top = cells.front().rect.Number("y");
  const double bottom =
      cells.back().rect.Number("y") + cells.back().rect.Number("height");
  const std::vector<XmlElement> ticks = Named(elements, "line");
  std::vector<XmlElement> labels;
  for (size_t i = 0; i + 1 < elements.size(); ++i) {
    if (elements[i].name == "line") labels.push_back(elements[i + 1]);
  }
  ASSERT_EQ(ticks.size(), labels.size());
  ASSERT_GE(ticks.size(), 2u);
  for (size_t i = 0; i < ticks.size(); ++i) {
    const double value = std::stod(labels[i].text);
    EXPECT_NEAR(ticks[i].Number("y1"), bottom - value / 4700.0 * (bottom - top),
                0.02);
    EXPECT_EQ(ticks[i].Number("y1"), ticks[i].Number("y2"));
  }
}

// Texts of one row neither touch each other nor leave the picture.
TEST(HeatMapTest, LabelsDoNotOverlapAtAnySize) {
  for (const auto& [rows, columns] :
       {std::pair(1, 1), std::pair(2, 3), std::pair(80, 8), std::pair(32, 64),
        std::pair(126, 128), std::pair(4, 200)}) {
    SCOPED_TRACE(absl::StrCat(rows, " x ", columns));
    const std::vector<XmlElement> elements =
        XmlReader::Read(DrawHeatMap(Example(rows, columns, 1)));
    ExpectPicture(elements);
    EXPECT_EQ(Cells(elements).size(), static_cast<size_t>(rows * columns));
    const std::vector<XmlElement> texts = Named(elements, "text");
    for (size_t a = 0; a < texts.size(); ++a) {
      for (size_t b = a + 1; b < texts.size(); ++b) {
        if (texts[a].attributes.at("text-anchor") != "middle") continue;
        if (texts[b].attributes.at("text-anchor") != "middle") continue;
        if (texts[a].attributes.count("transform") > 0) continue;
        if (texts[b].attributes.count("transform") > 0) continue;
        if (std::abs(texts[a].Number("y") - texts[b].Number("y")) >= 10) {
          continue;
        }
        const double half_widths =
            0.62 * 11 / 2 *
            static_cast<double>(texts[a].text.size() + texts[b].text.size());
        EXPECT_GE(std::abs(texts[a].Number("x") - texts[b].Number("x")),
                  half_widths)
            << texts[a].text << " and " << texts[b].text;
      }
    }
    ASSERT_FALSE(HasFailure());
  }
}

TEST(HeatMapTest, AllZerosAreDrawn) {
  HeatMap map = Example(2, 2, 1);
  map.panels[0].values = {0, 0, 0, 0};
  const std::vector<XmlElement> elements = XmlReader::Read(DrawHeatMap(map));
  for (const Cell& cell : Cells(elements)) {
    EXPECT_EQ(cell.rect.attributes.at("fill"), HeatColor(0.0));
  }
}

}  // namespace
}  // namespace blockmgr
