#include "bench/quality/html_report.h"

#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/charts/xml_elements.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CellOutcome OutcomeOf(uint64_t index, bool correct, double kl, double kept) {
  CellOutcome outcome = {.answers = {}, .kept_share = kept};
  for (int turn = 0; turn < 2; ++turn) {
    outcome.answers.push_back(
        {.correct = correct,
         .kl = kl,
         .depth = 0.1 + 0.2 * static_cast<double>(index % 5)});
  }
  return outcome;
}

// Ten contexts of each length, in two cells of one policy.
std::vector<GroupSummary> Groups() {
  std::vector<QualitySample> samples;
  for (const int32_t length : {512, 1024}) {
    for (uint64_t i = 0; i < 10; ++i) {
      samples.push_back(
          {.task = "fact",
           .num_tokens = length,
           .index = i,
           .mode = "agnostic",
           .cells = {"full", "agnostic/0.5/a | <b>", "agnostic/0.2/a | <b>"},
           .outcomes = {OutcomeOf(i, true, 0.0, 1.0),
                        OutcomeOf(i, i % 5 > 0, 0.1, 0.5),
                        OutcomeOf(i, i < 3, 0.4, 0.2)}});
    }
  }
  return Summarize(samples);
}

// The pictures of a page, each as a document.
std::vector<std::vector<XmlElement>> PicturesOf(absl::string_view html) {
  constexpr absl::string_view kEnd = "</svg>\n";
  std::vector<std::vector<XmlElement>> pictures;
  while (true) {
    const size_t begin = html.find("<svg");
    if (begin == absl::string_view::npos) return pictures;
    const size_t end = html.find(kEnd, begin) + kEnd.size();
    pictures.push_back(XmlReader::Read(
        absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n",
                     html.substr(begin, end - begin))));
    html.remove_prefix(end);
  }
}

TEST(HtmlReportTest, HasItsPicturesInItself) {
  const std::string html =
      HtmlReport(Groups(), {{"model", "m & n"}, {"threads", 2}});
  const auto pictures = PicturesOf(html);
  // Of each length: accuracy, KL, and the turns at two ratios. Then one map.
  ASSERT_EQ(pictures.size(), 9u);
  for (const auto& picture : pictures) ExpectPicture(picture);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("href")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, HasSubstr("m &amp; n"));
  EXPECT_THAT(html, HasSubstr("a | &lt;b&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  EXPECT_THAT(html, HasSubstr("10 contexts, 20 answers"));
}

TEST(HtmlReportTest, CurvesEndAtTheFullCache) {
  const auto pictures = PicturesOf(HtmlReport(Groups(), {}));
  EXPECT_THAT(Tooltips(pictures[0]),
              ::testing::ElementsAre("a | <b>: 0.2, 0.3", "a | <b>: 0.5, 0.8",
                                     "a | <b>: 1, 1"));
}

TEST(HtmlReportTest, TheMapHasDepthsAndLengths) {
  const auto pictures = PicturesOf(HtmlReport(Groups(), {}));
  const std::vector<std::string> tooltips = Tooltips(pictures.back());
  // Three cells of five depths and two lengths.
  ASSERT_EQ(tooltips.size(), 30u);
  // At half, what is in the first fifth is lost.
  EXPECT_THAT(tooltips[10], HasSubstr(": 0 %"));
  EXPECT_THAT(tooltips[12], HasSubstr(": 100 %"));
}

}  // namespace
}  // namespace blockmgr
