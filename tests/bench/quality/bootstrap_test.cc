#include "bench/quality/bootstrap.h"

#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(BootstrapTest, OneValueHasNoWidth) {
  const std::vector<double> one = {0.25};
  const Interval interval = BootstrapMean(one);
  EXPECT_EQ(interval.mean, 0.25);
  EXPECT_EQ(interval.low, 0.25);
  EXPECT_EQ(interval.high, 0.25);
}

// Draws of three values of 0, 0, 1 have mean 0, 1/3, 2/3 and 1 with
// probabilities 8/27, 12/27, 6/27 and 1/27. 3.7 % is more than 2.5 %.
TEST(BootstrapTest, IntervalOfThreeValuesByHand) {
  const std::vector<double> values = {0.0, 0.0, 1.0};
  const Interval interval = BootstrapMean(values);
  EXPECT_DOUBLE_EQ(interval.mean, 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(interval.low, 0.0);
  EXPECT_DOUBLE_EQ(interval.high, 1.0);
  EXPECT_FALSE(interval.Excludes(0.0));
}

// Of 30 right answers among 100, drawn as 0 and 1, the number right in a draw
// is binomial. SciPy: binom.ppf([.025, .975], 100, .3) is 21 and 39.
TEST(BootstrapTest, IntervalOfAShareIsTheBinomials) {
  std::vector<double> values(100, 0.0);
  for (size_t i = 0; i < 30; ++i) values[3 * i] = 1.0;
  const Interval interval = BootstrapMean(values);
  EXPECT_DOUBLE_EQ(interval.mean, 0.3);
  EXPECT_NEAR(interval.low, 0.21, 0.0101);
  EXPECT_NEAR(interval.high, 0.39, 0.0101);
  EXPECT_TRUE(interval.Excludes(0.0));
}

// The normal approximation: the mean and 1.96 standard errors.
TEST(BootstrapTest, IntervalOfManyValuesIsTheNormalOne) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(5.0, 2.0);
  std::vector<double> values;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < 400; ++i) {
    values.push_back(normal(random));
    sum += values.back();
    squares += values.back() * values.back();
  }
  const double mean = sum / 400.0;
  const double error = std::sqrt((squares / 400.0 - mean * mean) / 400.0);
  const Interval interval = BootstrapMean(values);
  EXPECT_NEAR(interval.mean, mean, 1e-12);
  EXPECT_NEAR(interval.low, mean - 1.96 * error, 0.15 * error);
  EXPECT_NEAR(interval.high, mean + 1.96 * error, 0.15 * error);
}

TEST(BootstrapTest, PairsAreDrawnTogether) {
  // Alone, both vary from 0 to 99. Their difference is always 1.
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 100; ++i) {
    a.push_back(i + 1.0);
    b.push_back(i);
  }
  const Interval difference = BootstrapDifference(a, b);
  EXPECT_DOUBLE_EQ(difference.low, 1.0);
  EXPECT_DOUBLE_EQ(difference.high, 1.0);
  std::vector<double> twice;
  twice.reserve(a.size());
  for (const double value : a) twice.push_back(2.0 * value);
  const Interval ratio = BootstrapRatio(twice, a);
  EXPECT_DOUBLE_EQ(ratio.mean, 2.0);
  EXPECT_DOUBLE_EQ(ratio.low, 2.0);
  EXPECT_DOUBLE_EQ(ratio.high, 2.0);
}

TEST(BootstrapTest, ThereIsNoRatioToNothing) {
  const std::vector<double> zeros(5, 0.0);
  const Interval ratio = BootstrapRatio(zeros, zeros);
  EXPECT_TRUE(std::isnan(ratio.mean));
  EXPECT_TRUE(std::isnan(ratio.low));
  EXPECT_TRUE(std::isnan(ratio.high));
}

TEST(BootstrapTest, TheSameValuesHaveTheSameInterval) {
  const std::vector<double> values = {0.1, 0.9, 0.4, 0.3, 0.8};
  EXPECT_EQ(BootstrapMean(values).low, BootstrapMean(values).low);
  EXPECT_EQ(BootstrapMean(values).high, BootstrapMean(values).high);
}

}  // namespace
}  // namespace blockmgr
