// A million random transactions against the naive model, as many on models with
// windows, and with a host tier half as many of each kind.

#include <cstdint>
#include <random>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/blockmgr/manager_driver.h"
#include "tests/blockmgr/region_history.h"

namespace blockmgr {
namespace {

// Of all instances without windows together; one run is one small manager.
constexpr int64_t kNumOps = 1'000'000 / (kSanitized ? 5 : 1);
// With fewer operations, what is rare may not happen: every change of the
// random numbers would make another count zero.
constexpr bool kMeetsEverything = !kSanitized;
constexpr int32_t kOpsPerPhase = 250;
constexpr int32_t kPhasesPerRun = 4;
constexpr int32_t kNumInstances = 6;

// Page size, and whether there is a prefix cache.
using ModelTestCase = std::tuple<int32_t, bool>;

DriverTally RunModelTest(const ModelTestCase& instance, DriverWindows windows,
                         int64_t num_ops, bool swaps = false) {
  const auto [page_size, caching] = instance;
  DriverTally tally;
  for (uint64_t run = 1; tally.num_ops < num_ops / kNumInstances + 1; ++run) {
    const uint64_t seed =
        run * 1000 + static_cast<uint64_t>(page_size) * 2 + (caching ? 1 : 0);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    DriverConfig config = RandomConfig(random, page_size, caching, windows);
    if (swaps) config.num_host_blocks = RandomInt(random, 1, 24);
    ManagerDriver driver(config, random, &tally);
    for (int32_t i = 0; i < kOpsPerPhase * kPhasesPerRun; ++i) {
      const bool fills = i / kOpsPerPhase % 2 == 0;
      driver.Operate(fills ? 0.6 : 0.4);
      driver.Check();
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "operation " << i;
        return tally;
      }
    }
    driver.Finish();
    if (::testing::Test::HasFailure()) return tally;
  }
  return tally;
}

// What happens with and without windows, evictions aside.
void ExpectTheUsual(const DriverTally& tally, const ModelTestCase& instance) {
  const auto [page_size, caching] = instance;
  EXPECT_GT(tally.refused_reservations, 0);
  EXPECT_GT(tally.undone_reservations, 0);
  EXPECT_GT(tally.closed_in_flight, 0);
  EXPECT_GT(tally.forks, 0);
  EXPECT_GT(tally.cut_backs, 0);
  EXPECT_GT(tally.cut_by_loss, 0);
  EXPECT_EQ(tally.entries_lost > 0, caching);
  EXPECT_GT(tally.rejections, 0);
  EXPECT_GT(tally.voided_runs, tally.rejections);
  EXPECT_EQ(tally.copies > 0, page_size > 1);
  EXPECT_GT(tally.lost_engines, 0);
  EXPECT_EQ(tally.reclaimed_blocks > 0, caching);
  EXPECT_EQ(tally.matched_blocks > 0, caching);
  EXPECT_EQ(tally.matched_waiting_blocks > 0, caching);
}

void ExpectSwaps(const DriverTally& tally, const ModelTestCase& instance) {
  const bool caching = std::get<bool>(instance);
  EXPECT_GT(tally.swap_outs, 0);
  EXPECT_GT(tally.refused_swap_outs, 0);
  EXPECT_GT(tally.swap_ins, 0);
  EXPECT_EQ(tally.needless_ins > 0, caching);
  EXPECT_GT(tally.lost_swaps, 0);
  EXPECT_GT(tally.dropped_swaps, 0);
  EXPECT_GT(tally.shortened_ins, 0);
  EXPECT_GT(tally.refused_ins, 0);
}

void ExpectRegionSwaps(const DriverTally& tally,
                       const ModelTestCase& instance) {
  EXPECT_GT(tally.region_outs, 0);
  EXPECT_GT(tally.region_ins, 0);
  EXPECT_EQ(tally.ins_behind_cache > 0, std::get<bool>(instance));
}

void ExpectEvictions(const DriverTally& tally, const ModelTestCase& instance) {
  const bool caching = std::get<bool>(instance);
  EXPECT_GT(tally.refused_orders, 0);
  EXPECT_GT(tally.undone_orders, 0);
  EXPECT_GT(tally.in_place_evictions, 0);
  EXPECT_GT(tally.copying_evictions, 0);
  EXPECT_GT(tally.mixed_evictions, 0);
  EXPECT_GT(tally.repeated_evictions, 0);
  EXPECT_GT(tally.refused_evictions, 0);
  EXPECT_GT(tally.refused_shards, 0);
  EXPECT_GT(tally.emptied_by_loss, 0);
  EXPECT_EQ(tally.dropped_entries > 0, caching);
  EXPECT_EQ(tally.published_regions > 0, caching);
}

std::string NameOf(const ::testing::TestParamInfo<ModelTestCase>& instance) {
  return "Page" + std::to_string(std::get<0>(instance.param)) +
         (std::get<1>(instance.param) ? "Caching" : "NoCache");
}

class BlockManagerModelTest : public ::testing::TestWithParam<ModelTestCase> {};

TEST_P(BlockManagerModelTest, AgreesWithNaiveModel) {
  const auto [page_size, caching] = GetParam();
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kNone, kNumOps);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectTheUsual(tally, GetParam());
  ExpectEvictions(tally, GetParam());
  EXPECT_EQ(tally.matched_parts > 0, caching && page_size > 1);
  EXPECT_EQ(tally.naive.fallen_blocks, 0);
  EXPECT_EQ(tally.undone_copies > 0, page_size > 1);
  EXPECT_EQ(tally.last_holders > 0, page_size > 1);
  EXPECT_EQ(tally.matched_regions > 10, caching);
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowGroups) {
  const auto [page_size, caching] = GetParam();
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kGroups, kNumOps / 2);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectTheUsual(tally, GetParam());
  ExpectEvictions(tally, GetParam());
  EXPECT_EQ(tally.matched_parts, 0);
  EXPECT_GT(tally.naive.fallen_blocks, 0);
  EXPECT_GT(tally.part_forks, 0);
  EXPECT_GT(tally.refused_backs, 0);
  EXPECT_GT(tally.backs_with_gap, 0);
  EXPECT_GT(tally.naive.stuck, 0);
  EXPECT_EQ(tally.group_copies > 0, page_size > 1);
  EXPECT_EQ(tally.naive.shortened_matches > 0, caching);
  EXPECT_EQ(tally.naive.reclaimed_alone > 0, caching);
  EXPECT_EQ(tally.naive.orphans_in_use > 0, caching);
  EXPECT_EQ(tally.naive.orphans_in_fence > 0, caching);
  EXPECT_EQ(tally.naive.linked_alone > 0, caching);
  EXPECT_EQ(tally.naive.adopted_windows > 0, caching);
  EXPECT_EQ(tally.undone_copies > 0, page_size > 1);
  EXPECT_EQ(tally.last_holders > 0, page_size > 1);
  EXPECT_EQ(tally.matched_regions > 10, caching);
  EXPECT_EQ(tally.naive.regions_with_windows > 10, caching);
  EXPECT_EQ(tally.naive.refused_regions > 0, caching);
  EXPECT_EQ(tally.naive.unpublished_regions > 0, caching);
  EXPECT_EQ(tally.equal_regions > 0, caching);
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowsOnly) {
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kAll, kNumOps / 2);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectTheUsual(tally, GetParam());
  EXPECT_EQ(tally.matched_parts, 0);
  EXPECT_GT(tally.naive.fallen_blocks, 0);
  EXPECT_GT(tally.part_forks, 0);
  EXPECT_GT(tally.refused_backs, 0);
  EXPECT_GT(tally.backs_with_gap, 0);
  EXPECT_GT(tally.naive.stuck, 0);
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfTheHostTier) {
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kNone, kNumOps / 2, true);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectSwaps(tally, GetParam());
  ExpectRegionSwaps(tally, GetParam());
  EXPECT_EQ(tally.stuck_swap_outs + tally.stuck_ins, 0);
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowGroupsInTheHostTier) {
  const auto [page_size, caching] = GetParam();
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kGroups, kNumOps / 2, true);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectSwaps(tally, GetParam());
  ExpectRegionSwaps(tally, GetParam());
  EXPECT_GT(tally.stuck_swap_outs, 0);
  EXPECT_GT(tally.stuck_ins, 0);
  if (page_size == 1) return;
  EXPECT_EQ(tally.ins_behind_region > 0, caching);
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowsInTheHostTier) {
  const DriverTally tally =
      RunModelTest(GetParam(), DriverWindows::kAll, kNumOps / 2, true);
  ASSERT_FALSE(HasFailure());
  if (!kMeetsEverything) return;
  ExpectSwaps(tally, GetParam());
  EXPECT_EQ(tally.ins_behind_cache, 0);
  EXPECT_GT(tally.stuck_swap_outs, 0);
  EXPECT_GT(tally.stuck_ins, 0);
}

INSTANTIATE_TEST_SUITE_P(Small, BlockManagerModelTest,
                         ::testing::Combine(::testing::Values(1, 2, 16),
                                            ::testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace blockmgr
