#include "bench/micro/benchmarks.h"

#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(TailOfMediansTest, LeavesOutWhatStrikesAnotherStepInEveryRun) {
  std::vector<Outcome> runs(3);
  for (size_t run = 0; run < runs.size(); ++run) {
    runs[run].steps_us.assign(100, 20);
    runs[run].steps_us[10 * run] = 90;
  }
  EXPECT_DOUBLE_EQ(TailOfMedians(runs), 1);
}

TEST(TailOfMediansTest, HasWhatAStepDoesInEveryRun) {
  std::vector<Outcome> runs(3);
  for (size_t run = 0; run < runs.size(); ++run) {
    runs[run].steps_us.assign(100, 20);
    // The slowest of a hundred is just above their 99.9th percentile.
    runs[run].steps_us[98] = 80;
    runs[run].steps_us[99] = 80 + static_cast<double>(run);
  }
  // Of 80 and 81, a tenth below the latter.
  EXPECT_NEAR(TailOfMedians(runs), (80 + 0.901) / 20, 1e-9);
}

}  // namespace
}  // namespace blockmgr
