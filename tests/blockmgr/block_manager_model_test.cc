// A million random transactions against the naive model, as many on models with
// windows, and with a host tier half as many of each kind.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/driver_config.h"
#include "tests/blockmgr/driver_state.h"
#include "tests/blockmgr/manager_driver.h"
#include "tests/testing/case_count.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitizers.h"

namespace blockmgr {
namespace {

// Of all instances without windows together; one run is one small manager.
// Brief runs begin with a part. A test goes on, up to twice as long as
// otherwise, until it has met all that it must meet: what is rare may be so by
// any change of the random numbers.
constexpr int64_t kNumOps = 1'000'000;
constexpr int64_t kLeastDivisor = kBriefest ? 10 : kBrief ? 5 : 1;
constexpr int64_t kMostFactor = 2;
constexpr int32_t kOpsPerPhase = 250;
constexpr int32_t kPhasesPerRun = 4;
constexpr int32_t kNumInstances = 6;

// Page size, and whether there is a prefix cache.
using ModelTestCase = std::tuple<int32_t, bool>;

// How often a test has met what it must meet more than so many times, or no
// more than that.
class Counts {
 public:
  void Add(const char* name, int64_t count, bool is_met = true,
           int64_t more_than = 0) {
    counts_.push_back({name, count, more_than, is_met});
  }
  bool AllAreMet() const {
    return std::ranges::all_of(counts_, [](const Count& count) {
      return !count.is_met || count.count > count.more_than;
    });
  }
  void Expect() const {
    for (const Count& count : counts_) {
      EXPECT_EQ(count.count > count.more_than, count.is_met)
          << count.name << ": " << count.count << ", to be compared with "
          << count.more_than;
    }
  }

 private:
  struct Count {
    const char* name;
    int64_t count;
    int64_t more_than;
    bool is_met;
  };
  std::vector<Count> counts_;
};

// What a test has to count, as the tally is now.
using CountAll = std::function<void(const DriverTally& tally, Counts* counts)>;

void RunModelTest(const ModelTestCase& instance, DriverWindows windows,
                  int64_t num_ops, bool swaps, const CountAll& count_all) {
  const auto [page_size, caching] = instance;
  const int64_t least = num_ops / kLeastDivisor / kNumInstances + 1;
  const int64_t most = kMostFactor * num_ops / kNumInstances + 1;
  DriverTally tally;
  Counts counts;
  for (uint64_t run = 1;
       tally.num_ops < least || (tally.num_ops < most && !counts.AllAreMet());
       ++run) {
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
        return;
      }
    }
    driver.Finish();
    if (::testing::Test::HasFailure()) return;
    counts = {};
    count_all(tally, &counts);
  }
  counts.Expect();
}

// What happens with and without windows, evictions aside.
void CountTheUsual(const DriverTally& tally, const ModelTestCase& instance,
                   Counts* counts) {
  const auto [page_size, caching] = instance;
  counts->Add("refused_reservations", tally.refused_reservations);
  counts->Add("reservations_less_one", tally.reservations_less_one);
  // Too rare for the cases that sanitizers have time for.
  if (!kSanitized) {
    counts->Add("copies_less_one", tally.copies_less_one, page_size > 1);
  }
  counts->Add("last_reservations", tally.last_reservations);
  counts->Add("last_reclaims", tally.last_reclaims, caching);
  counts->Add("undone_reservations", tally.undone_reservations);
  counts->Add("closed_in_flight", tally.closed_in_flight);
  counts->Add("forks", tally.forks);
  counts->Add("cut_backs", tally.cut_backs);
  counts->Add("cut_by_loss", tally.cut_by_loss);
  counts->Add("entries_lost", tally.entries_lost, caching);
  counts->Add("rejections", tally.rejections);
  counts->Add("voided_runs", tally.voided_runs, true, tally.rejections);
  counts->Add("copies", tally.copies, page_size > 1);
  counts->Add("lost_engines", tally.lost_engines);
  counts->Add("reclaimed_blocks", tally.reclaimed_blocks, caching);
  counts->Add("matched_blocks", tally.matched_blocks, caching);
  counts->Add("complete_readings", tally.complete_readings);
  counts->Add("told_removals", tally.told_removals, caching);
  counts->Add("matched_waiting_blocks", tally.matched_waiting_blocks, caching);
}

void CountSwaps(const DriverTally& tally, const ModelTestCase& instance,
                Counts* counts) {
  const bool caching = std::get<bool>(instance);
  counts->Add("swap_outs", tally.swap_outs);
  counts->Add("refused_swap_outs", tally.refused_swap_outs);
  counts->Add("swap_outs_less_one", tally.swap_outs_less_one);
  counts->Add("last_swap_outs", tally.last_swap_outs);
  counts->Add("swap_ins", tally.swap_ins);
  counts->Add("needless_ins", tally.needless_ins, caching);
  counts->Add("lost_swaps", tally.lost_swaps);
  counts->Add("dropped_swaps", tally.dropped_swaps);
  counts->Add("shortened_ins", tally.shortened_ins);
  counts->Add("refused_ins", tally.refused_ins);
}

void CountPublishedInWindows(const NaiveTally& tally, bool caching,
                             Counts* counts) {
  counts->Add("published_window_regions", tally.published_window_regions,
              caching, 10);
  counts->Add("linked_window_regions", tally.linked_window_regions, caching);
  counts->Add("found_window_regions", tally.found_window_regions, caching);
  counts->Add("passed_window_regions", tally.passed_window_regions, caching);
  counts->Add("missing_window_regions", tally.missing_window_regions, caching);
  counts->Add("reclaimed_window_regions", tally.reclaimed_window_regions,
              caching);
  counts->Add("dropped_window_regions", tally.dropped_window_regions, caching);
}

void CountRegionSwaps(const DriverTally& tally, const ModelTestCase& instance,
                      Counts* counts) {
  counts->Add("region_outs", tally.region_outs);
  counts->Add("region_ins", tally.region_ins);
  counts->Add("ins_behind_cache", tally.ins_behind_cache,
              std::get<bool>(instance));
}

void CountEvictions(const DriverTally& tally, const ModelTestCase& instance,
                    Counts* counts) {
  const bool caching = std::get<bool>(instance);
  counts->Add("refused_orders", tally.refused_orders);
  counts->Add("orders_less_one", tally.orders_less_one);
  counts->Add("own_less_one", tally.own_less_one);
  counts->Add("last_orders", tally.last_orders);
  counts->Add("undone_orders", tally.undone_orders);
  counts->Add("in_place_evictions", tally.in_place_evictions);
  counts->Add("copying_evictions", tally.copying_evictions);
  counts->Add("mixed_evictions", tally.mixed_evictions);
  counts->Add("repeated_evictions", tally.repeated_evictions);
  counts->Add("refused_evictions", tally.refused_evictions);
  counts->Add("refused_shards", tally.refused_shards);
  counts->Add("emptied_by_loss", tally.emptied_by_loss);
  counts->Add("dropped_entries", tally.dropped_entries, caching);
  counts->Add("published_regions", tally.published_regions, caching);
  counts->Add("told_regions", tally.told_regions, caching);
}

std::string NameOf(const ::testing::TestParamInfo<ModelTestCase>& instance) {
  return "Page" + std::to_string(std::get<0>(instance.param)) +
         (std::get<1>(instance.param) ? "Caching" : "NoCache");
}

class BlockManagerModelTest : public ::testing::TestWithParam<ModelTestCase> {};

TEST_P(BlockManagerModelTest, AgreesWithNaiveModel) {
  const int32_t page_size = std::get<0>(GetParam());
  const bool caching = std::get<1>(GetParam());
  RunModelTest(
      GetParam(), DriverWindows::kNone, kNumOps, false,
      [&](const DriverTally& tally, Counts* counts) {
        CountTheUsual(tally, GetParam(), counts);
        CountEvictions(tally, GetParam(), counts);
        counts->Add("matched_parts", tally.matched_parts,
                    caching && page_size > 1);
        counts->Add("lapsed_readers", tally.lapsed_readers, caching);
        counts->Add("fallen_blocks", tally.naive.fallen_blocks, false);
        counts->Add("undone_copies", tally.undone_copies, page_size > 1);
        counts->Add("last_holders", tally.last_holders, page_size > 1);
        counts->Add("matched_regions", tally.matched_regions, caching, 10);
      });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowGroups) {
  const int32_t page_size = std::get<0>(GetParam());
  const bool caching = std::get<1>(GetParam());
  RunModelTest(
      GetParam(), DriverWindows::kGroups, kNumOps / 2, false,
      [&](const DriverTally& tally, Counts* counts) {
        CountTheUsual(tally, GetParam(), counts);
        CountEvictions(tally, GetParam(), counts);
        counts->Add("matched_parts", tally.matched_parts, false);
        counts->Add("fallen_blocks", tally.naive.fallen_blocks);
        counts->Add("part_forks", tally.part_forks);
        counts->Add("refused_backs", tally.refused_backs);
        counts->Add("backs_with_gap", tally.backs_with_gap);
        counts->Add("stuck", tally.naive.stuck);
        counts->Add("group_copies", tally.group_copies, page_size > 1);
        counts->Add("shortened_matches", tally.naive.shortened_matches,
                    caching);
        counts->Add("reclaimed_alone", tally.naive.reclaimed_alone, caching);
        counts->Add("orphans_in_use", tally.naive.orphans_in_use, caching);
        counts->Add("orphans_in_fence", tally.naive.orphans_in_fence, caching);
        counts->Add("linked_alone", tally.naive.linked_alone, caching);
        counts->Add("adopted_windows", tally.naive.adopted_windows, caching);
        counts->Add("undone_copies", tally.undone_copies, page_size > 1);
        counts->Add("last_holders", tally.last_holders, page_size > 1);
        counts->Add("matched_regions", tally.matched_regions, caching, 10);
        counts->Add("regions_with_windows", tally.naive.regions_with_windows,
                    caching, 10);
        counts->Add("refused_regions", tally.naive.refused_regions, caching);
        counts->Add("unpublished_regions", tally.naive.unpublished_regions,
                    caching);
        counts->Add("equal_regions", tally.equal_regions, caching);
      });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfRegionsInWindows) {
  const int32_t page_size = std::get<0>(GetParam());
  const bool caching = std::get<1>(GetParam());
  RunModelTest(
      GetParam(), DriverWindows::kEvictedGroups, kNumOps / 2, true,
      [&](const DriverTally& tally, Counts* counts) {
        CountTheUsual(tally, GetParam(), counts);
        CountSwaps(tally, GetParam(), counts);
        counts->Add("refused_orders", tally.refused_orders);
        counts->Add("orders_less_one", tally.orders_less_one);
        counts->Add("last_orders", tally.last_orders);
        counts->Add("undone_orders", tally.undone_orders);
        counts->Add("dropped_entries", tally.dropped_entries, caching);
        counts->Add("window_regions", tally.naive.window_regions, true, 100);
        counts->Add("window_regions_again", tally.naive.window_regions_again);
        counts->Add("fallen_regions", tally.naive.fallen_regions);
        counts->Add("window_region_ins", tally.window_region_ins);
        counts->Add("spared_windows", tally.naive.spared_windows, caching);
        counts->Add("stuck_swap_outs", tally.stuck_swap_outs);
        counts->Add("part_forks", tally.part_forks);
        counts->Add("refused_backs", tally.refused_backs);
        counts->Add("stuck", tally.naive.stuck);
        counts->Add("group_copies", tally.group_copies, page_size > 1);
        counts->Add("published_regions", tally.published_regions, caching);
        CountPublishedInWindows(tally.naive, caching, counts);
      });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowsOnly) {
  RunModelTest(GetParam(), DriverWindows::kAll, kNumOps / 2, false,
               [&](const DriverTally& tally, Counts* counts) {
                 CountTheUsual(tally, GetParam(), counts);
                 counts->Add("matched_parts", tally.matched_parts, false);
                 counts->Add("fallen_blocks", tally.naive.fallen_blocks);
                 counts->Add("part_forks", tally.part_forks);
                 counts->Add("refused_backs", tally.refused_backs);
                 counts->Add("backs_with_gap", tally.backs_with_gap);
                 counts->Add("stuck", tally.naive.stuck);
               });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfTheHostTier) {
  RunModelTest(GetParam(), DriverWindows::kNone, kNumOps / 2, true,
               [&](const DriverTally& tally, Counts* counts) {
                 CountSwaps(tally, GetParam(), counts);
                 CountRegionSwaps(tally, GetParam(), counts);
                 counts->Add("stuck", tally.stuck_swap_outs + tally.stuck_ins,
                             false);
               });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowGroupsInTheHostTier) {
  const int32_t page_size = std::get<0>(GetParam());
  const bool caching = std::get<1>(GetParam());
  RunModelTest(GetParam(), DriverWindows::kGroups, kNumOps / 2, true,
               [&](const DriverTally& tally, Counts* counts) {
                 CountSwaps(tally, GetParam(), counts);
                 CountRegionSwaps(tally, GetParam(), counts);
                 counts->Add("stuck_swap_outs", tally.stuck_swap_outs);
                 counts->Add("stuck_ins", tally.stuck_ins);
                 if (page_size == 1) return;
                 counts->Add("ins_behind_region", tally.ins_behind_region,
                             caching);
               });
}

TEST_P(BlockManagerModelTest, AgreesWithNaiveModelOfWindowsInTheHostTier) {
  RunModelTest(GetParam(), DriverWindows::kAll, kNumOps / 2, true,
               [&](const DriverTally& tally, Counts* counts) {
                 CountSwaps(tally, GetParam(), counts);
                 counts->Add("ins_behind_cache", tally.ins_behind_cache, false);
                 counts->Add("stuck_swap_outs", tally.stuck_swap_outs);
                 counts->Add("stuck_ins", tally.stuck_ins);
               });
}

INSTANTIATE_TEST_SUITE_P(Small, BlockManagerModelTest,
                         ::testing::Combine(::testing::Values(1, 2, 16),
                                            ::testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace blockmgr
