// Every call of a BlockManager that can be refused is refused once, in each of
// the scenarios below: one that takes blocks, of the pool or the host tier,
// when there is one too few; one whose arguments come from outside, by a wrong
// one. The call must say so, and leave the state as it was, to the last bit of
// its hash. See taker.h.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/taker_scenarios.h"

namespace blockmgr::sim {

void PrintTo(const TakerScenario& scenario, std::ostream* out) {
  *out << scenario.name;
}

namespace {

std::vector<TakerScenario> AllTakerScenarios() {
  std::vector<TakerScenario> all = PoolScenarios();
  for (TakerScenario& scenario : HostAndWindowScenarios()) {
    all.push_back(std::move(scenario));
  }
  return all;
}

// Runs the scenario once for every taking, which fails; how often those of
// every kind did.
std::map<std::string, int32_t> SweepTakings(const TakerScenario& scenario) {
  SCOPED_TRACE(scenario.name);
  std::map<std::string, int32_t> num_failed;
  Taker plain(scenario.world);
  scenario.play(&plain);
  const std::vector<Taking>& takings = plain.takings();
  for (size_t i = 0; i < takings.size(); ++i) {
    if (takings[i].num_blocks == 0) continue;
    SCOPED_TRACE(testing::Message()
                 << "taking " << i << ": " << takings[i].kind);
    Taker taker(scenario.world, takings, static_cast<int32_t>(i));
    scenario.play(&taker);
    EXPECT_EQ(taker.takings().size(), takings.size());
    ++num_failed[takings[i].kind];
    if (takings[i].reclaims) ++num_failed["reclaim"];
    if (testing::Test::HasFailure()) break;
  }
  return num_failed;
}

class ManagerFaultTest : public testing::TestWithParam<TakerScenario> {};

TEST_P(ManagerFaultTest, ARefusedCallLeavesNoTrace) {
  EXPECT_FALSE(SweepTakings(GetParam()).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, ManagerFaultTest, testing::ValuesIn(AllTakerScenarios()),
    [](const testing::TestParamInfo<TakerScenario>& scenario) {
      return scenario.param.name;
    });

TEST(ManagerFaultSweepTest, HasThirtyScenarios) {
  EXPECT_GE(AllTakerScenarios().size(), 30u);
}

TEST(ManagerFaultSweepTest, CallsOfEveryKindHaveFailed) {
  std::map<std::string, int32_t> num_failed;
  for (const TakerScenario& scenario : AllTakerScenarios()) {
    for (const auto& [kind, count] : SweepTakings(scenario)) {
      num_failed[kind] += count;
    }
  }
  for (const char* kind : {"reserve",
                           "reserve, with shards",
                           "reserve, with windows",
                           "copy a fork's",
                           "copy a fork's, with windows",
                           "copy in one call",
                           "copy in one call, with windows",
                           "copy a part",
                           "order",
                           "order, with shards",
                           "order, with windows",
                           "order, partly in place",
                           "order again",
                           "order again, with windows",
                           "order again, partly in place",
                           "order again, partly in place, with shards",
                           "order in place",
                           "order in place, with shards",
                           "order in place, with windows",
                           "counts",
                           "counts, with shards",
                           "counts, with windows",
                           "lose blocks",
                           "lose blocks, with windows",
                           "lose host blocks",
                           "swap out",
                           "swap out, with windows",
                           "swap out what went back, with windows",
                           "swap a region out",
                           "swap in",
                           "swap in, with windows",
                           "swap in behind what is cached",
                           "swap a region in",
                           "reclaim"}) {
    EXPECT_GT(num_failed[kind], 0) << kind;
  }
}

}  // namespace
}  // namespace blockmgr::sim
