// A strict reader of the XML that pictures are made of, for tests: elements
// with attributes and text; no CDATA, comments or entity declarations.
#ifndef TESTS_BENCH_CHARTS_XML_ELEMENTS_H_
#define TESTS_BENCH_CHARTS_XML_ELEMENTS_H_

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <gtest/gtest.h>

namespace blockmgr {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of its own, unescaped
  int depth = 0;     // 0: the root

  double Number(const std::string& attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) {
      ADD_FAILURE() << name << " has no " << attribute;
      return 0.0;
    }
    return std::strtod(found->second.c_str(), nullptr);
  }
};

class XmlReader {
 public:
  // All elements, in order of their opening tags. Fails the test and returns
  // what it has where the text is not well-formed.
  static std::vector<XmlElement> Read(absl::string_view text) {
    XmlReader reader;
    reader.ReadAll(text);
    return reader.elements_;
  }

 private:
  void ReadAll(absl::string_view text) {
    constexpr absl::string_view kHead =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    EXPECT_TRUE(absl::ConsumePrefix(&text, kHead));
    while (!text.empty() && !::testing::Test::HasFailure()) {
      const size_t tag = text.find('<');
      ReadText(text.substr(0, tag));
      if (tag == absl::string_view::npos) break;
      const size_t end = text.find('>', tag);
      if (end == absl::string_view::npos) {
        ADD_FAILURE() << "a tag is not closed";
        return;
      }
      ReadTag(text.substr(tag + 1, end - tag - 1));
      text.remove_prefix(end + 1);
    }
    EXPECT_TRUE(open_.empty()) << "elements are not closed";
  }

  void ReadText(absl::string_view text) {
    const std::string plain = Unescape(text);
    if (!open_.empty()) {
      elements_[open_.back()].text += plain;
    } else {
      EXPECT_EQ(plain.find_first_not_of('\n'), std::string::npos);
    }
  }

  void ReadTag(absl::string_view tag) {
    if (absl::ConsumePrefix(&tag, "/")) {
      ASSERT_FALSE(open_.empty()) << tag;
      EXPECT_EQ(elements_[open_.back()].name, tag);
      open_.pop_back();
      return;
    }
    EXPECT_FALSE(open_.empty() && !elements_.empty()) << "a second root";
    const bool is_empty = absl::ConsumeSuffix(&tag, "/");
    XmlElement element;
    element.depth = static_cast<int>(open_.size());
    element.name = std::string(tag.substr(0, tag.find(' ')));
    tag.remove_prefix(element.name.size());
    while (!tag.empty()) {
      ASSERT_TRUE(absl::ConsumePrefix(&tag, " ")) << tag;
      const size_t equals = tag.find("=\"");
      ASSERT_NE(equals, absl::string_view::npos) << tag;
      const size_t quote = tag.find('"', equals + 2);
      ASSERT_NE(quote, absl::string_view::npos) << tag;
      const bool is_new =
          element.attributes
              .emplace(std::string(tag.substr(0, equals)),
                       Unescape(tag.substr(equals + 2, quote - equals - 2)))
              .second;
      EXPECT_TRUE(is_new) << tag;
      tag.remove_prefix(quote + 1);
    }
    elements_.push_back(element);
    if (!is_empty) open_.push_back(elements_.size() - 1);
  }

  static std::string Unescape(absl::string_view text) {
    const std::map<std::string, char> entities = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"#39", '\''}};
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      EXPECT_TRUE(byte == '\n' || (byte >= 0x20 && byte < 0x7f));
      EXPECT_NE(text[i], '<');
      if (text[i] != '&') {
        plain += text[i];
        continue;
      }
      const size_t end = text.find(';', i);
      if (end == absl::string_view::npos) {
        ADD_FAILURE() << "a bare & in " << text;
        return plain;
      }
      const auto found =
          entities.find(std::string(text.substr(i + 1, end - i - 1)));
      if (found == entities.end()) {
        ADD_FAILURE() << "an unknown entity in " << text;
        return plain;
      }
      plain += found->second;
      i = end;
    }
    return plain;
  }

  std::vector<XmlElement> elements_;
  std::vector<size_t> open_;
};

inline std::vector<XmlElement> Named(const std::vector<XmlElement>& elements,
                                     absl::string_view name) {
  std::vector<XmlElement> named;
  for (const XmlElement& element : elements) {
    if (element.name == name) named.push_back(element);
  }
  return named;
}

// Titles of elements, but not that of the document.
inline std::vector<std::string> Tooltips(
    const std::vector<XmlElement>& elements) {
  std::vector<std::string> tooltips;
  for (const XmlElement& element : elements) {
    if (element.name == "title" && element.depth > 1) {
      tooltips.push_back(element.text);
    }
  }
  return tooltips;
}

// Texts and shapes inside the picture, by the attributes that place them, and
// nothing that runs or is fetched.
inline void ExpectPicture(const std::vector<XmlElement>& elements) {
  ASSERT_FALSE(elements.empty());
  EXPECT_EQ(elements.front().name, "svg");
  const double width = elements.front().Number("width");
  const double height = elements.front().Number("height");
  // First a white background over everything.
  const std::vector<XmlElement> rects = Named(elements, "rect");
  ASSERT_FALSE(rects.empty());
  EXPECT_EQ(rects.front().attributes.at("fill"), "#ffffff");
  EXPECT_EQ(rects.front().Number("width"), width);
  EXPECT_EQ(rects.front().Number("height"), height);
  for (const XmlElement& element : elements) {
    SCOPED_TRACE(absl::StrCat(element.name, " ", element.text));
    EXPECT_NE(element.name, "script");
    EXPECT_EQ(element.attributes.count("href"), 0u);
    if (element.depth == 0) continue;
    double left = 0.0;
    double right = 0.0;
    if (element.name == "rect") {
      left = element.Number("x");
      right = left + element.Number("width");
      EXPECT_LE(element.Number("y") + element.Number("height"), height + 0.01);
    } else if (element.name == "text") {
      // A guess of 0.56 em a character, the mean of DejaVu Sans.
      const double size = element.attributes.count("transform") > 0
                              ? 0.0
                              : 0.56 * element.Number("font-size") *
                                    static_cast<double>(element.text.size());
      const std::string& anchor = element.attributes.at("text-anchor");
      left = element.Number("x") - (anchor == "end"      ? size
                                    : anchor == "middle" ? size / 2
                                                         : 0.0);
      right = left + size;
      EXPECT_LE(element.Number("y"), height);
      EXPECT_GE(element.Number("y"), element.Number("font-size") * 0.7);
    }
    EXPECT_GE(left, 0.0);
    EXPECT_LE(right, width + 0.01);
  }
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_CHARTS_XML_ELEMENTS_H_
