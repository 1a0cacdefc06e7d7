#include "scheduler/scheduler_stats.h"

#include <set>
#include <string>

#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "tests/testing/num_members.h"

namespace blockmgr {
namespace {

TEST(SchedulerStatsTest, EveryMemberHasARow) {
  SchedulerStats stats;
  std::set<std::string> names;
  VisitSchedulerStats(stats, [&](StatKind /*kind*/, absl::string_view name,
                                 auto& value, auto&&... /*texts*/) {
    EXPECT_TRUE(names.emplace(name).second) << name;
    EXPECT_EQ(value, 0) << name << " has two rows";
    value = 1;
  });
  // Neither `tenants` nor `blocks` nor its dropped_entries have a row.
  EXPECT_EQ(names.size(), NumMembers<SchedulerStats>() - 2 +
                              NumMembers<BlockManagerStats>() - 1);
}

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
