#include "scheduler/server/core_load.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

class CoreLoadTest : public ::testing::Test {
 protected:
  void Pass(double now_seconds, int32_t num_running, int32_t num_used_blocks) {
    load_.BeginPass(now_seconds);
    load_.EndPass(num_running, num_used_blocks);
  }
  // Returns the report of a moment with this load.
  CoreStats Report(int32_t num_running, int32_t num_used_blocks) const {
    CoreStats report;
    report.scheduler.num_running = num_running;
    report.scheduler.blocks.used_blocks = num_used_blocks;
    load_.Report(&report);
    return report;
  }

  CoreLoad load_;
};

TEST_F(CoreLoadTest, IntegratesRunningRequestsOverTime) {
  Pass(100, 3, 0);
  EXPECT_DOUBLE_EQ(Report(0, 0).running_request_seconds, 0);
  Pass(102, 5, 0);
  Pass(102.5, 0, 0);
  Pass(110, 7, 0);
  EXPECT_DOUBLE_EQ(Report(0, 0).running_request_seconds, 3 * 2 + 5 * 0.5);
  EXPECT_DOUBLE_EQ(Report(0, 0).clock_seconds, 10);
}

TEST_F(CoreLoadTest, TimeStandsStillWhileTheClockIsBehind) {
  Pass(100, 1, 0);
  Pass(104, 1, 0);
  Pass(50, 1, 0);
  EXPECT_DOUBLE_EQ(load_.now_seconds(), 104);
  Pass(105, 1, 0);
  EXPECT_DOUBLE_EQ(load_.now_seconds(), 105);
  EXPECT_DOUBLE_EQ(Report(0, 0).running_request_seconds, 5);
}

TEST_F(CoreLoadTest, PeaksAreThoseOfSamplesAndOfThePresent) {
  Pass(100, 3, 20);
  Pass(101, 1, 30);
  EXPECT_EQ(Report(2, 25).max_running, 3);
  EXPECT_EQ(Report(2, 25).max_used_blocks, 30);
  EXPECT_EQ(Report(4, 40).max_running, 4);
  EXPECT_EQ(Report(4, 40).max_used_blocks, 40);
  EXPECT_DOUBLE_EQ(Report(0, 0).peaks_since_seconds, 0);
}

TEST_F(CoreLoadTest, PeaksBeginAnew) {
  Pass(100, 3, 30);
  Pass(104, 2, 20);
  load_.ResetPeaks(2, 20);
  Pass(105, 1, 10);
  const CoreStats report = Report(0, 0);
  EXPECT_EQ(report.max_running, 2);
  EXPECT_EQ(report.max_used_blocks, 20);
  EXPECT_DOUBLE_EQ(report.peaks_since_seconds, 4);
  EXPECT_DOUBLE_EQ(report.running_request_seconds, 3 * 4 + 2);
}

}  // namespace
}  // namespace blockmgr
