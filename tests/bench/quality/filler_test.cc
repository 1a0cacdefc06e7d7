#include "bench/quality/filler.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/quality/quality_testing.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kProse[] =
    "The first sentence of this paragraph is long enough, and is followed by\n"
    "another one. The second sentence ends the paragraph, which is prose and\n"
    "has a full stop at its end, as others have too.\n";

TEST(FillerTest, SentencesOfProse) {
  Filler filler;
  filler.Add(kProse);
  EXPECT_THAT(
      filler.sentences,
      ElementsAre("\n\nThe first sentence of this paragraph is long enough, "
                  "and is followed by another one.",
                  " The second sentence ends the paragraph, which is prose and "
                  "has a full stop at its end, as others have too."));
  EXPECT_THAT(filler.paragraphs, ElementsAre(0u));
}

TEST(FillerTest, LeavesOutWhatIsNoProse) {
  Filler filler;
  filler.Add("A heading\n\n");
  filler.Add(std::string("    ") + kProse);  // indented
  std::string code;
  for (int i = 0; i < 30; ++i) code += "X = f(i) + 42 * {y}; // {}.\n";
  filler.Add(code);
  EXPECT_THAT(filler.sentences, ElementsAre());
  filler.Add(kProse);
  filler.Add(kProse);
  EXPECT_THAT(filler.paragraphs, ElementsAre(0u, 2u));
}

TEST(FillerTest, TheFingerprintIsThatOfTheText) {
  Filler a;
  a.Add(kProse);
  Filler b;
  b.Add(kProse);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  b.Add(kProse);
  EXPECT_NE(a.fingerprint, b.fingerprint);
}

TEST(FillerTest, ReadsFiles) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string(kProse) + "\n";
  const std::string name = folder.Write("text.txt", text);
  ASSERT_OK_AND_ASSIGN(const Filler filler, ReadFiller({name}));
  EXPECT_EQ(filler.paragraphs.size(), 20u);
}

TEST(FillerTest, ErrorsNameTheFile) {
  const TempFolder folder;
  EXPECT_THAT(ReadFiller({folder.File("none.txt")}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(StartsWith("--filler"), HasSubstr("none.txt"))));
  EXPECT_THAT(ReadFiller({folder.path()}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(StartsWith("--filler"), HasSubstr("a folder"))));
  EXPECT_THAT(ReadFiller({folder.Write("text.txt", kProse)}),
              IsInvalid("20 paragraphs of prose, got 1"));
}

TEST(FillerTest, DocumentationIsSorted) {
  const std::vector<std::string> files = DocumentationFiles();
  EXPECT_TRUE(std::ranges::is_sorted(files));
}

}  // namespace
}  // namespace blockmgr
