#include "scheduler/server/awake_clock.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(AwakeClockTest, CountsASecondBetweenTwoLooksAtMost) {
  AwakeClock clock;
  EXPECT_EQ(clock.Look(1000), 0);
  EXPECT_EQ(clock.Look(1000.5), 0.5);
  EXPECT_EQ(clock.Look(1001.5), 1.5);
  EXPECT_EQ(clock.Look(5000), 2.5);
  EXPECT_EQ(clock.Look(5000.25), 2.75);
  EXPECT_EQ(clock.awake_seconds(), 2.75);
}

TEST(AwakeClockTest, StandsStillWhereTheOtherGoesBack) {
  AwakeClock clock;
  EXPECT_EQ(clock.Look(10), 0);
  EXPECT_EQ(clock.Look(10.5), 0.5);
  EXPECT_EQ(clock.Look(3), 0.5);
  EXPECT_EQ(clock.Look(3.25), 0.75);
}

}  // namespace
}  // namespace blockmgr
