#include "bench/evict/golden.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GoldenFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<GoldenCase>> Read(const std::string& text) {
    return ReadGoldenFile(folder_.Write("g.txt", text));
  }
  void ExpectRefused(const std::string& text, const std::string& where,
                     const std::string& why) {
    EXPECT_THAT(Read(text), IsInvalid("g.txt:" + where + ": ", why));
  }
  TempFolder folder_;
};

TEST_F(GoldenFileTest, ReadsEveryKindOfLine) {
  ASSERT_OK_AND_ASSIGN(const auto cases, Read(R"(# a comment
case one
m uniform/tova
i T -4
d ratio 0.25
in Q 7 21 4.0 3 8 96 16 bb7c192b56de7c5c
tab s0 4 1.5 nan inf -inf
b 2 3 4
kept 0 3 1 2 9
kept 1 0
sc 1 2 0.5 -1e-3
margin 0.5
solve 3 value 2
solve 4 value 7
end

case two
m x
end
)"));
  ASSERT_THAT(cases, SizeIs(2));
  const GoldenCase& one = cases[0];
  EXPECT_EQ(one.name, "one");
  EXPECT_EQ(one.method, "uniform/tova");
  EXPECT_EQ(one.integers.at("T"), -4);
  EXPECT_EQ(one.numbers.at("ratio"), 0.25);
  EXPECT_EQ(one.inputs.at("Q").seed, 7u);
  EXPECT_EQ(one.inputs.at("Q").bits, 21);
  EXPECT_EQ(one.inputs.at("Q").scale, 4.0);
  EXPECT_THAT(one.inputs.at("Q").dims, ElementsAre(8, 96, 16));
  EXPECT_EQ(one.inputs.at("Q").fnv1a64, 0xbb7c192b56de7c5cu);
  ASSERT_THAT(one.tables.at("s0"), SizeIs(4));
  EXPECT_EQ(one.tables.at("s0")[0], 1.5f);
  EXPECT_TRUE(std::isnan(one.tables.at("s0")[1]));
  EXPECT_EQ(one.tables.at("s0")[2], HUGE_VALF);
  EXPECT_EQ(one.tables.at("s0")[3], -HUGE_VALF);
  EXPECT_THAT(one.budgets, ElementsAre(3, 4));
  EXPECT_THAT(one.kept.at(0), ElementsAre(1, 2, 9));
  EXPECT_THAT(one.kept.at(1), IsEmpty());
  EXPECT_THAT(one.scores.at(1), ElementsAre(0.5, -1e-3));
  EXPECT_THAT(one.others.at("margin"), ElementsAre(ElementsAre("0.5")));
  EXPECT_THAT(one.others.at("solve"),
              ElementsAre(ElementsAre("3", "value", "2"),
                          ElementsAre("4", "value", "7")));
  EXPECT_EQ(cases[1].name, "two");
  EXPECT_THAT(cases[1].kept, IsEmpty());
}

TEST_F(GoldenFileTest, NamesTheLineThatDoesNotFit) {
  ExpectRefused("i T 3\n", "1", "expected case, got 'i'");
  ExpectRefused("case a\ni T x\nend\n", "2", "expected an integer, got 'x'");
  ExpectRefused("case a\ni T 3 4\nend\n", "2", "expected the end of the line");
  ExpectRefused("case a\nd r\nend\n", "2", "expected a number, got");
  ExpectRefused("case a\nb 3 1 2\nend\n", "2", "expected a budget, got");
  ExpectRefused("case a\nb 1 1 2\nend\n", "2", "expected the end of the line");
  ExpectRefused("case a\nkept 0 99999999999999 1\nend\n", "2", "a position");
  ExpectRefused("case a\nin Q 1 22 1.0 1 4 ff\nend\n", "2", "1 to 21 bits");
  ExpectRefused("case a\nin Q 1 5 1.0 2 99999999 99999999 ff\nend\n", "2",
                "at most 2^28 values");
  ExpectRefused("case a\nin Q 1 5 1.0 1 4 xyz\nend\n", "2", "hexadecimal");
  ExpectRefused("case a\ncase b\nend\n", "2", "end before the next case");
  ExpectRefused("case a\nm x\n", "2", "expected end of case 'a'");
  EXPECT_THAT(ReadGoldenFile(folder_.File("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(GoldenInputTest, IsWhatTheSeedMakes) {
  GoldenInput input;
  input.seed = 7;
  input.bits = 5;
  input.scale = 2.0;
  input.dims = {1, 3};
  // splitmix64(7 << 32 | i) computed beside: the three fields of five bits at
  // 0, 21 and 42, over 32, minus 1.5, times 2.
  const std::vector<uint64_t> bits = {0xbcda4680438a5951, 0x1a3eaa3c25c3a340,
                                      0xa70ed1d48cd2f00d};
  input.fnv1a64 = 0xd0f3d15e87e2bcf8;
  ASSERT_OK_AND_ASSIGN(const std::vector<float> values, input.Generate());
  ASSERT_THAT(values, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t sum =
        bits[i] % 32 + (bits[i] >> 21) % 32 + (bits[i] >> 42) % 32;
    EXPECT_EQ(values[i], (static_cast<double>(sum) / 32 - 1.5) * 2);
  }
}

TEST(GoldenInputTest, RefusesAWrongHash) {
  GoldenInput input;
  input.seed = 7;
  input.bits = 5;
  input.scale = 1.0;
  input.dims = {4};
  input.fnv1a64 = 1;
  EXPECT_THAT(input.Generate(), StatusIs(absl::StatusCode::kDataLoss,
                                         AllOf(HasSubstr("seed 7"),
                                               HasSubstr("expected hash 1"))));
}

}  // namespace
}  // namespace blockmgr
