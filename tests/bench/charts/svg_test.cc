#include "bench/charts/svg.h"

#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/charts/xml_elements.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

TEST(SvgTest, EscapesWhatIsMarkup) {
  EXPECT_EQ(EscapeXml("a<b>&\"c\" 'd'"),
            "a&lt;b&gt;&amp;&quot;c&quot; &#39;d&#39;");
}

TEST(SvgTest, ReplacesWhatXmlCannotHold) {
  EXPECT_EQ(EscapeXml(std::string("a\0\x1b\x7f\n\xff"
                                  "b",
                                  7)),
            "a?????b");
}

TEST(SvgTest, AnEmptyPictureIsAWhiteRectangle) {
  const std::string document = SvgWriter(120, 80.5, "a & b").Document();
  const std::vector<XmlElement> elements = XmlReader::Read(document);
  ASSERT_EQ(elements.size(), 3u);
  ExpectPicture(elements);
  EXPECT_EQ(elements[0].attributes.at("viewBox"), "0 0 120 80.5");
  EXPECT_EQ(elements[0].attributes.at("xmlns"), "http://www.w3.org/2000/svg");
  EXPECT_EQ(elements[1].name, "title");
  EXPECT_EQ(elements[1].text, "a & b");
}

TEST(SvgTest, DrawsInOrderWithTooltips) {
  SvgWriter svg(100, 100, "t");
  svg.Rect({1.25, 2}, {3.999, 4}, "#123456", "x < y");
  svg.Circle({5, 6}, 2.5, "#654321", "dot");
  svg.Circle({7, 8}, 2.5, "#654321");
  svg.Line({0, 0}, {10, -0.001}, "#111111", 2);
  const std::array<SvgPoint, 3> points = {{{0, 1}, {2.5, 3}, {4, 5.126}}};
  svg.Polyline(points, "#222222", 1.5, "4 2");
  const std::vector<XmlElement> elements = XmlReader::Read(svg.Document());
  std::vector<std::string> names;
  for (const XmlElement& element : elements) names.push_back(element.name);
  EXPECT_THAT(names, ::testing::ElementsAre("svg", "title", "rect", "rect",
                                            "title", "circle", "title",
                                            "circle", "line", "polyline"));
  EXPECT_EQ(elements[3].attributes.at("x"), "1.25");
  EXPECT_EQ(elements[3].attributes.at("width"), "4");
  EXPECT_EQ(elements[4].text, "x < y");
  EXPECT_EQ(elements[4].depth, elements[3].depth + 1);
  EXPECT_EQ(elements[6].text, "dot");
  EXPECT_EQ(elements[8].attributes.at("y2"), "0");
  EXPECT_EQ(elements[9].attributes.at("points"), "0,1 2.5,3 4,5.13");
  EXPECT_EQ(elements[9].attributes.at("stroke-dasharray"), "4 2");
}

TEST(SvgTest, PlacesText) {
  SvgWriter svg(100, 100, "t");
  svg.Text({10, 20}, "<plain>", {});
  svg.Text({30, 40}, "up",
           {.anchor = SvgAnchor::kMiddle, .bold = true, .upwards = true});
  svg.Text({50, 60}, "end", {.anchor = SvgAnchor::kEnd, .size = 9});
  const std::vector<XmlElement> texts =
      Named(XmlReader::Read(svg.Document()), "text");
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0].text, "<plain>");
  EXPECT_EQ(texts[0].attributes.at("text-anchor"), "start");
  EXPECT_EQ(texts[0].attributes.count("transform"), 0u);
  EXPECT_EQ(texts[1].attributes.at("text-anchor"), "middle");
  EXPECT_EQ(texts[1].attributes.at("transform"), "rotate(-90 30 40)");
  EXPECT_EQ(texts[1].attributes.at("font-weight"), "bold");
  EXPECT_EQ(texts[2].attributes.at("font-size"), "9");
  EXPECT_EQ(texts[2].Number("y"), 60.0);
}

TEST(SvgTest, DocumentDoesNotConsumeTheWriter) {
  SvgWriter svg(10, 10, "t");
  const std::string before = svg.Document();
  EXPECT_EQ(svg.Document(), before);
  svg.Line({0, 0}, {1, 1}, "#000000");
  EXPECT_THAT(svg.Document(), HasSubstr("<line"));
}

}  // namespace
}  // namespace blockmgr
