#include "program/progress.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(FormatProgressTest, ShowsRateAndTimeLeft) {
  EXPECT_EQ(FormatProgress(50, 0, 200, 10),
            "[#######                       ] 50/200  5.0 req/s  ETA 0:30");
  EXPECT_EQ(FormatProgress(200, 3, 200, 100),
            "[##############################] 200/200  3 failed  2.0 req/s  "
            "ETA 0:00");
  EXPECT_EQ(FormatProgress(1, 0, 3602, 2),
            "[                              ] 1/3602  0.5 req/s  ETA 2:00:02");
  EXPECT_EQ(FormatProgress(15, 0, 30, 10, "benchmarks"),
            "[###############               ] 15/30  1.5 benchmarks/s  "
            "ETA 0:10");
}

TEST(FormatProgressTest, SaysNothingItCannotKnow) {
  EXPECT_EQ(FormatProgress(0, 0, 10, 0),
            "[                              ] 0/10");
  EXPECT_EQ(FormatProgress(0, 0, 0, 0), "[##############################] 0/0");
  EXPECT_EQ(FormatProgress(-1, 0, 0, 0),
            "[##############################] -1/0");
}

TEST(FormatProgressTest, MoreThanExpectedIsAFullBar) {
  EXPECT_EQ(FormatProgress(12, 0, 10, 6),
            "[##############################] 12/10  2.0 req/s  ETA 0:00");
}

}  // namespace
}  // namespace blockmgr
