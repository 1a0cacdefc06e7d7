// A writer of small standalone SVG pictures: shapes and text, no scripts, no
// style sheets, nothing fetched.
#ifndef BENCH_CHARTS_SVG_H_
#define BENCH_CHARTS_SVG_H_

#include <span>
#include <string>

#include <absl/strings/string_view.h>

namespace blockmgr {

// Pixels from the upper left corner, y downwards.
struct SvgPoint {
  double x = 0.0;
  double y = 0.0;
};

enum class SvgAnchor { kStart, kMiddle, kEnd };

struct SvgTextStyle {
  SvgAnchor anchor = SvgAnchor::kStart;
  double size = 12.0;  // pixels
  bool bold = false;
  bool upwards = false;  // turned by 90 degrees, read from below
  absl::string_view fill = "#222222";
};

// A width that text of this size will not exceed in common sans-serif fonts.
double SvgTextWidth(absl::string_view text, double size);

// Text as XML wants it, in elements and in attributes: markup is escaped, what
// XML cannot hold and bytes outside ASCII become '?'.
std::string EscapeXml(absl::string_view text);

// Elements are drawn in the order of the calls, over a white background, so
// that the picture reads the same in light and in dark viewers. Colours are
// what SVG takes as one: "#aabbcc". Thread-compatible.
class SvgWriter {
 public:
  // `title` is what screen readers and viewers call the picture.
  SvgWriter(double width, double height, absl::string_view title);

  // `tooltip` is shown by viewers over the shape; empty: none.
  void Rect(SvgPoint corner, SvgPoint size, absl::string_view fill,
            absl::string_view tooltip = "");
  void Circle(SvgPoint center, double radius, absl::string_view fill,
              absl::string_view tooltip = "");
  // `dashes` as in stroke-dasharray; empty: a solid line.
  void Polyline(std::span<const SvgPoint> points, absl::string_view stroke,
                double width, absl::string_view dashes = "");
  // A filled area, which lets what is behind it shine through.
  void Area(std::span<const SvgPoint> corners, absl::string_view fill,
            double opacity);
  void Line(SvgPoint from, SvgPoint to, absl::string_view stroke,
            double width = 1.0);
  // `at` is the anchor on the base line.
  void Text(SvgPoint at, absl::string_view text, const SvgTextStyle& style);

  // The whole document. The writer is as before.
  std::string Document() const;

 private:
  void CloseShape(absl::string_view element, absl::string_view tooltip);

  std::string head_;
  std::string body_;
};

}  // namespace blockmgr

#endif  // BENCH_CHARTS_SVG_H_
