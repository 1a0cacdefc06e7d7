// A million random transactions against the naive model.

#include <cstdint>
#include <random>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/blockmgr/manager_driver.h"
#include "tests/blockmgr/region_history.h"

namespace blockmgr {
namespace {

// Of all instances together; one run is one small manager.
constexpr int64_t kNumOps = 1'000'000 / kCaseDivisor;
constexpr int32_t kOpsPerPhase = 250;
constexpr int32_t kPhasesPerRun = 4;
constexpr int32_t kNumInstances = 6;

class BlockManagerModelTest
    : public ::testing::TestWithParam<std::tuple<int32_t, bool>> {};

TEST_P(BlockManagerModelTest, AgreesWithNaiveModel) {
  const auto [page_size, caching] = GetParam();
  DriverTally tally;
  for (uint64_t run = 1; tally.num_ops < kNumOps / kNumInstances + 1; ++run) {
    const uint64_t seed =
        run * 1000 + static_cast<uint64_t>(page_size) * 2 + (caching ? 1 : 0);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    ManagerDriver driver(RandomConfig(random, page_size, caching), random,
                         &tally);
    for (int32_t i = 0; i < kOpsPerPhase * kPhasesPerRun; ++i) {
      const bool fills = i / kOpsPerPhase % 2 == 0;
      driver.Operate(fills ? 0.6 : 0.4);
      driver.Check();
      ASSERT_FALSE(HasFailure()) << "operation " << i;
    }
    driver.Finish();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(tally.refused_reservations, 0);
  EXPECT_GT(tally.refused_orders, 0);
  EXPECT_GT(tally.undone_reservations, 0);
  EXPECT_GT(tally.undone_orders, 0);
  EXPECT_GT(tally.in_place_evictions, 0);
  EXPECT_GT(tally.copying_evictions, 0);
  EXPECT_GT(tally.mixed_evictions, 0);
  EXPECT_GT(tally.repeated_evictions, 0);
  EXPECT_GT(tally.refused_evictions, 0);
  EXPECT_GT(tally.refused_shards, 0);
  EXPECT_GT(tally.closed_in_flight, 0);
  EXPECT_GT(tally.forks, 0);
  EXPECT_GT(tally.cut_backs, 0);
  EXPECT_GT(tally.cut_by_loss, 0);
  EXPECT_GT(tally.emptied_by_loss, 0);
  EXPECT_EQ(tally.entries_lost > 0, caching);
  EXPECT_GT(tally.rejections, 0);
  EXPECT_GT(tally.voided_runs, tally.rejections);
  EXPECT_EQ(tally.copies > 0, page_size > 1);
  EXPECT_GT(tally.lost_engines, 0);
  EXPECT_EQ(tally.reclaimed_blocks > 0, caching);
  EXPECT_EQ(tally.matched_blocks > 0, caching);
  EXPECT_EQ(tally.matched_parts > 0, caching && page_size > 1);
  EXPECT_EQ(tally.matched_waiting_blocks > 0, caching);
  EXPECT_EQ(tally.dropped_entries > 0, caching);
  EXPECT_EQ(tally.published_regions > 0, caching);
  // Rare: sanitizers run too few operations to meet one for sure.
  if (kCaseDivisor == 1) {
    EXPECT_EQ(tally.undone_copies > 0, page_size > 1);
    EXPECT_EQ(tally.last_holders > 0, page_size > 1);
    EXPECT_EQ(tally.matched_regions > 10, caching);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Small, BlockManagerModelTest,
    ::testing::Combine(::testing::Values(1, 2, 16), ::testing::Bool()),
    [](const ::testing::TestParamInfo<std::tuple<int32_t, bool>>& instance) {
      return "Page" + std::to_string(std::get<0>(instance.param)) +
             (std::get<1>(instance.param) ? "Caching" : "NoCache");
    });

}  // namespace
}  // namespace blockmgr
