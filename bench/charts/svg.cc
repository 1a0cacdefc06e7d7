#include "bench/charts/svg.h"

#include <array>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace blockmgr {
namespace {

// Hundredths of a pixel are finer than any viewer draws.
std::string Number(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Attribute(absl::string_view name, absl::string_view value) {
  return absl::StrCat(" ", name, "=\"", EscapeXml(value), "\"");
}

std::string Attribute(absl::string_view name, double value) {
  return Attribute(name, Number(value));
}

// Returns points as SVG lists them.
std::string PointList(std::span<const SvgPoint> points) {
  std::string text;
  for (const SvgPoint& point : points) {
    absl::StrAppend(&text, text.empty() ? "" : " ", Number(point.x), ",",
                    Number(point.y));
  }
  return text;
}

}  // namespace

double SvgTextWidth(absl::string_view text, double size) {
  // DejaVu Sans, the widest of the usual ones, needs 0.6 em on average for
  // words and figures.
  constexpr double kEm = 0.62;
  return kEm * size * static_cast<double>(text.size());
}

std::string EscapeXml(absl::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
    }
  }
  return escaped;
}

SvgWriter::SvgWriter(double width, double height, absl::string_view title)
    : head_(absl::StrCat(
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<svg xmlns=\"http://www.w3.org/2000/svg\"",
          Attribute("width", width), Attribute("height", height),
          Attribute("viewBox",
                    absl::StrCat("0 0 ", Number(width), " ", Number(height))),
          Attribute("role", "img"),
          Attribute("font-family", "Helvetica, Arial, sans-serif"),
          ">\n<title>", EscapeXml(title), "</title>\n")) {
  Rect({0, 0}, {width, height}, "#ffffff");
}

void SvgWriter::CloseShape(absl::string_view element,
                           absl::string_view tooltip) {
  if (tooltip.empty()) {
    body_ += "/>\n";
    return;
  }
  absl::StrAppend(&body_, "><title>", EscapeXml(tooltip), "</title></", element,
                  ">\n");
}

void SvgWriter::Rect(SvgPoint corner, SvgPoint size, absl::string_view fill,
                     absl::string_view tooltip) {
  absl::StrAppend(&body_, "<rect", Attribute("x", corner.x),
                  Attribute("y", corner.y), Attribute("width", size.x),
                  Attribute("height", size.y), Attribute("fill", fill));
  CloseShape("rect", tooltip);
}

void SvgWriter::Circle(SvgPoint center, double radius, absl::string_view fill,
                       absl::string_view tooltip) {
  absl::StrAppend(&body_, "<circle", Attribute("cx", center.x),
                  Attribute("cy", center.y), Attribute("r", radius),
                  Attribute("fill", fill));
  CloseShape("circle", tooltip);
}

void SvgWriter::Area(std::span<const SvgPoint> corners, absl::string_view fill,
                     double opacity) {
  absl::StrAppend(&body_, "<polygon", Attribute("points", PointList(corners)),
                  Attribute("fill", fill), Attribute("fill-opacity", opacity),
                  "/>\n");
}

void SvgWriter::Polyline(std::span<const SvgPoint> points,
                         absl::string_view stroke, double width,
                         absl::string_view dashes) {
  absl::StrAppend(&body_, "<polyline", Attribute("points", PointList(points)),
                  Attribute("fill", "none"), Attribute("stroke", stroke),
                  Attribute("stroke-width", width),
                  Attribute("stroke-linejoin", "round"));
  if (!dashes.empty()) {
    body_ += Attribute("stroke-dasharray", dashes);
  }
  body_ += "/>\n";
}

void SvgWriter::Line(SvgPoint from, SvgPoint to, absl::string_view stroke,
                     double width) {
  absl::StrAppend(&body_, "<line", Attribute("x1", from.x),
                  Attribute("y1", from.y), Attribute("x2", to.x),
                  Attribute("y2", to.y), Attribute("stroke", stroke),
                  Attribute("stroke-width", width), "/>\n");
}

void SvgWriter::Text(SvgPoint at, absl::string_view text,
                     const SvgTextStyle& style) {
  constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
  absl::StrAppend(
      &body_, "<text", Attribute("x", at.x), Attribute("y", at.y),
      Attribute("text-anchor", kAnchors[static_cast<size_t>(style.anchor)]),
      Attribute("font-size", style.size), Attribute("fill", style.fill));
  if (style.bold) body_ += Attribute("font-weight", "bold");
  if (style.upwards) {
    body_ += Attribute("transform", absl::StrCat("rotate(-90 ", Number(at.x),
                                                 " ", Number(at.y), ")"));
  }
  absl::StrAppend(&body_, ">", EscapeXml(text), "</text>\n");
}

std::string SvgWriter::Document() const {
  return absl::StrCat(head_, body_, "</svg>\n");
}

}  // namespace blockmgr
