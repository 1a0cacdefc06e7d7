#include "scheduler/scheduler_stats.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(SubtractCountersTest, LeavesGaugesAndPeaks) {
  SchedulerStats before;
  before.num_steps = 10;
  before.evicted_bytes = 5;
  before.blocks.reclaimed_blocks = 2;
  before.num_running = 3;
  before.kept_entries_max = 9;
  SchedulerStats stats = before;
  stats.num_steps = 17;
  stats.evicted_bytes = 6;
  stats.num_forks = 4;
  SubtractCounters(before, &stats);
  EXPECT_EQ(stats.num_steps, 7u);
  EXPECT_EQ(stats.evicted_bytes, 1);
  EXPECT_EQ(stats.num_forks, 4u);
  EXPECT_EQ(stats.blocks.reclaimed_blocks, 0u);
  EXPECT_EQ(stats.num_running, 3);
  EXPECT_EQ(stats.kept_entries_max, 9);
}

}  // namespace
}  // namespace blockmgr
