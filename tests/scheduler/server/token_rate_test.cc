#include "scheduler/server/token_rate.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(TokenRateTest, IsThatOfTheLastSecondOrMore) {
  TokenRate rate;
  EXPECT_EQ(rate.Look(0, 0.5), 0);
  EXPECT_DOUBLE_EQ(rate.Look(100, 2), 50);
  EXPECT_DOUBLE_EQ(rate.Look(1000, 2.5), 50);
  EXPECT_DOUBLE_EQ(rate.Look(500, 4), 200);
}

TEST(TokenRateTest, ACounterThatBeginsAgainIsNoRate) {
  TokenRate rate;
  EXPECT_DOUBLE_EQ(rate.Look(100, 2), 50);
  EXPECT_EQ(rate.Look(10, 4), 0);
  EXPECT_DOUBLE_EQ(rate.Look(30, 6), 10);
}

}  // namespace
}  // namespace blockmgr
