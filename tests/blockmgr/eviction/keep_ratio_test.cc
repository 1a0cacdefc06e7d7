#include "blockmgr/eviction/keep_ratio.h"

#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(KeepRatioTest, ParsesDecimalsExactly) {
  ASSERT_OK_AND_ASSIGN(const KeepRatio ratio, KeepRatio::Parse("0.2"));
  EXPECT_EQ(ratio.numerator, 2);
  EXPECT_EQ(ratio.denominator, 10);
  ASSERT_OK_AND_ASSIGN(const KeepRatio one, KeepRatio::Parse("1.000"));
  EXPECT_EQ(one, KeepRatio());
  ASSERT_OK_AND_ASSIGN(const KeepRatio small, KeepRatio::Parse("0.000000001"));
  EXPECT_EQ(small.numerator, 1);
  EXPECT_EQ(small.denominator, 1'000'000'000);
}

TEST(KeepRatioTest, EqualValuesCompareEqual) {
  ASSERT_OK_AND_ASSIGN(const KeepRatio a, KeepRatio::Parse("0.50"));
  ASSERT_OK_AND_ASSIGN(const KeepRatio b, KeepRatio::Parse(".5"));
  EXPECT_EQ(a, b);
}

TEST(KeepRatioTest, RejectsWhatIsNoDecimalInRange) {
  for (const char* text :
       {"", ".", "0", "0.0", "1.0001", "2", "-0.5", "+0.5", "1e-1", "nan",
        "0.1.2", "0.0000000001", "99999999999999999999", " 0.5", "0,5"}) {
    EXPECT_THAT(KeepRatio::Parse(text),
                IsInvalid(absl::StrCat("got '", text, "'")));
  }
}

TEST(KeepRatioTest, FloorsWhereDoublesWouldNot) {
  ASSERT_OK_AND_ASSIGN(const KeepRatio ratio, KeepRatio::Parse("0.29"));
  EXPECT_EQ(static_cast<int>(0.29 * 100), 28);
  EXPECT_EQ(ratio.Floor(100), 29);
}

TEST(KeepRatioTest, FloorsTheLargestCount) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  ASSERT_OK_AND_ASSIGN(const KeepRatio ratio, KeepRatio::Parse("0.999999999"));
  EXPECT_EQ(ratio.Floor(kMax), kMax - 3);
  EXPECT_EQ(KeepRatio().Floor(kMax), kMax);
}

TEST(KeepRatioTest, ReadsEveryThousandthFromItsDouble) {
  for (int thousandths = 1; thousandths <= 1000; ++thousandths) {
    ASSERT_OK_AND_ASSIGN(const KeepRatio ratio,
                         KeepRatio::FromDouble(thousandths / 1000.0));
    EXPECT_EQ(ratio.numerator * 1000, thousandths * ratio.denominator);
    ASSERT_OK_AND_ASSIGN(const KeepRatio again,
                         KeepRatio::Parse(ratio.ToString()));
    EXPECT_EQ(again, ratio);
  }
}

TEST(KeepRatioTest, ReadsADifferenceOfDoublesAsItsDecimal) {
  ASSERT_OK_AND_ASSIGN(const KeepRatio ratio, KeepRatio::FromDouble(1 - 0.8));
  EXPECT_EQ(ratio.ToString(), "0.2");
}

TEST(KeepRatioTest, RejectsDoublesOutOfRange) {
  for (const double value :
       {0.0, -0.1, 1.0000001, 1e-10, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT(KeepRatio::FromDouble(value),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace blockmgr
