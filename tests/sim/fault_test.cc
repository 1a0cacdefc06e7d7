// Fault at Nth: in many scenarios every call that can be refused is refused
// once in every way, every eviction is refused once by the engine, what is
// copied to or from the host tier is lost once, the tier has once no room for
// each that is swapped out, and every answer is once the engine's last. (To
// order an eviction, and to take blocks for a step, cannot fail in a scheduler:
// it has counted them, and checks that.) A refused call leaves the state as it
// was, to the last bit of its hash, and the end as if it had never been made.
// After any other fault the state and all plans to come are those of a twin: a
// run in which what has failed was never begun. Two faults have no twin, and
// only their ends are compared: what is lost on its way back, and an eviction
// whose request goes on without it.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/fault_scenarios.h"
#include "tests/sim/scripted.h"
#include "tests/testing/case_count.h"

namespace blockmgr::sim {

namespace {

// Brief tests look at every fourth point, sanitizers at every eighth.
constexpr int32_t kPointStride = kBriefest    ? 16
                                 : kSanitized ? 8
                                 : kBrief     ? 4
                                              : 1;

std::vector<std::string> PlansUntil(const Scripted& scripted) {
  const std::vector<std::string>& plans = scripted.plans();
  return {plans.begin(), plans.begin() + scripted.aftermath().num_plans};
}

std::vector<std::string> PlansAfter(const Scripted& scripted) {
  const std::vector<std::string>& plans = scripted.plans();
  return {plans.begin() + scripted.aftermath().num_plans, plans.end()};
}

bool HasDecode(const Scenario& scenario) {
  return scenario.script.find(",decode") != std::string::npos;
}

// What CompareRefused has compared, each with all before it.
enum class Compared : uint8_t {
  kTables,  // of the sequences whose orders were refused, and all ends
  kUntil,   // plans until then, and where all requests are
  kPlans,   // all plans
  kState,   // every bit of the state then
};

bool HasStart(const std::vector<std::string>& plans) {
  return std::ranges::any_of(plans, [](const std::string& plan) {
    return plan.find("start ") != std::string::npos;
  });
}

// Compares what follows when the orders of a step are refused. plain_outcome:
// the OutcomeHash of the scenario without a fault.
Compared CompareRefused(const Scenario& scenario, int32_t point,
                        uint64_t plain_outcome) {
  Scripted faulty(scenario, point, FaultKind::kRefusedOrder);
  faulty.Run();
  EXPECT_EQ(faulty.report().message(), "");
  // A refused order harms nobody else.
  EXPECT_EQ(faulty.scheduler().stats().num_finished,
            faulty.report().counts().requests);
  const Aftermath& after = faulty.aftermath();
  const bool has_failed = !after.failed.empty();
  if (after.num_refused >
      std::ssize(after.failed) + std::ssize(after.commands)) {
    // Who goes on without needs more than it was admitted for, and nothing but
    // the scheduler says when to squeeze: there is no twin.
    EXPECT_GT(after.num_as_before, 0);
    if (!has_failed) {
      EXPECT_EQ(faulty.OutcomeHash(), plain_outcome);
    }
    return Compared::kTables;
  }
  Scripted twin(
      scenario, has_failed ? point : -1, FaultKind::kRefusedOrder,
      {.step = after.step, .commands = after.commands, .cancel = after.failed});
  twin.Run();
  EXPECT_EQ(twin.report().message(), "");
  const Aftermath& other = twin.aftermath();
  if (!has_failed) {
    EXPECT_EQ(faulty.OutcomeHash(), twin.OutcomeHash());
  }
  // A step with an order has no drafts, that of the twin may.
  if (scenario.options.num_speculative_tokens > 0 && !after.commands.empty()) {
    return Compared::kTables;
  }
  EXPECT_EQ(PlansUntil(faulty), PlansUntil(twin));
  EXPECT_EQ(after.requests, other.requests);
  EXPECT_EQ(after.stats.blocks.used_blocks, other.stats.blocks.used_blocks);
  // What has failed has published what the step computed, for whoever starts.
  const bool has_published =
      has_failed && scenario.options.enable_prefix_caching;
  if (has_published && HasStart(PlansAfter(faulty))) return Compared::kUntil;
  EXPECT_EQ(PlansAfter(faulty), PlansAfter(twin));
  // Steps in flight took other blocks than the destinations; slots are open
  // in the order in which they were left.
  const bool is_exact = has_failed
                            ? after.num_finished == std::ssize(after.failed)
                            : scenario.options.max_steps_in_flight == 1;
  if (has_published || !is_exact) return Compared::kPlans;
  EXPECT_EQ(after.state, other.state);
  return Compared::kState;
}

// Refuses the orders of each step in turn, without and with the prefix cache;
// how often what was compared.
std::map<Compared, int32_t> CompareAllRefused(Scenario scenario) {
  std::map<Compared, int32_t> num_points;
  for (const bool caching : {false, true}) {
    scenario.options.enable_prefix_caching = caching;
    Scripted plain(scenario, -1, FaultKind::kRefusedOrder);
    plain.Run();
    for (int32_t point = 0; point < plain.num_points(); point += kPointStride) {
      SCOPED_TRACE(testing::Message() << scenario.name << ", fault at point "
                                      << point << ", caching " << caching);
      ++num_points[CompareRefused(scenario, point, plain.OutcomeHash())];
      if (testing::Test::HasFailure()) return num_points;
    }
  }
  return num_points;
}

// What CompareLost has compared, each with all before it.
enum class AfterLoss : uint8_t {
  kEnd,       // how all ends, and that nothing is left of what the engine held
  kRequests,  // where all requests are, as far as commands and decode
              // compressions do not tell how far the lost steps had got
  kPlans,     // all plans to come
  kAll,       // these, and every bit of all requests
};

// Compares what follows when the engine is lost. Bit by bit that is what is
// left of requests: step numbers, and the order in which blocks became free,
// tell of the steps that the twin has not issued.
AfterLoss CompareLost(const Scenario& scenario, const Scripted& plain,
                      const Scripted& faulty) {
  EXPECT_EQ(faulty.OutcomeHash(), plain.OutcomeHash());
  const Aftermath& after = faulty.aftermath();
  Scripted twin(
      scenario, faulty.fault_at(), FaultKind::kLostEngine,
      {.step = after.step, .is_held = true, .commands = after.commands});
  twin.Run();
  EXPECT_EQ(twin.report().message(), "");
  EXPECT_EQ(twin.OutcomeHash(), plain.OutcomeHash());
  const SchedulerStats& stats = twin.aftermath().stats;
  EXPECT_EQ(after.stats.blocks.free_blocks, scenario.layout.num_blocks - 1);
  EXPECT_EQ(after.stats.num_running, 0);
  EXPECT_EQ(after.stats.num_steps_in_flight, 0);
  EXPECT_EQ(after.stats.num_swapped, 0);
  // But forks that were admitted have left their parents, and some may have
  // been passed, admitted after that, or preempted in vain.
  if (after.stats.num_forks != stats.num_forks ||
      after.stats.num_passes != stats.num_passes) {
    return AfterLoss::kEnd;
  }
  EXPECT_EQ(after.stats.num_waiting, stats.num_waiting);
  EXPECT_EQ(after.stats.num_finished, stats.num_finished);
  EXPECT_EQ(after.stats.num_output_tokens, stats.num_output_tokens);
  // What is listed of decode compressions depends on how far it got, the
  // numbers of commands on those that were given.
  const bool is_exact =
      stats.num_passes == 0 && after.commands.empty() && !HasDecode(scenario);
  if (is_exact) {
    EXPECT_EQ(after.requests, twin.aftermath().requests);
  }
  if (after.stats.num_preemptions != stats.num_preemptions) {
    return AfterLoss::kRequests;
  }
  EXPECT_EQ(PlansAfter(faulty), PlansAfter(twin));
  return is_exact ? AfterLoss::kAll : AfterLoss::kPlans;
}

// What is lost on its way to the host tier, or there once it is back, is as if
// the tier had had no room for it.
void CompareLostCopies(const Scenario& scenario, const Scripted& faulty) {
  const Aftermath& after = faulty.aftermath();
  Scripted twin(scenario, -1, FaultKind::kLostCopies,
                {.step = after.step, .swap_outs = after.swap_outs});
  twin.Run();
  EXPECT_EQ(twin.report().message(), "");
  EXPECT_EQ(twin.OutcomeHash(), faulty.OutcomeHash());
  EXPECT_EQ(PlansUntil(twin), PlansUntil(faulty));
  EXPECT_EQ(PlansAfter(twin), PlansAfter(faulty));
  EXPECT_EQ(twin.aftermath().requests, after.requests);
  // Later steps in flight keep from the tier what has left it. The rest of the
  // state has the copies that the engine is yet to be told to forget.
  if (scenario.options.max_steps_in_flight == 1 || after.swap_outs.empty()) {
    EXPECT_EQ(twin.aftermath().memory, after.memory);
  }
}

class FaultTest : public testing::TestWithParam<Scenario> {
 protected:
  // Runs the scenario once for every point, a fault there; `check` sees each.
  // Returns how many points there are.
  template <typename Check>
  int32_t Sweep(FaultKind fault, Check check) {
    Scripted plain(GetParam(), -1, fault);
    plain.Run();
    EXPECT_EQ(plain.report().message(), "");
    const int32_t num_points = plain.num_points();
    for (int32_t point = 0; point < num_points; point += kPointStride) {
      SCOPED_TRACE(testing::Message() << "fault at point " << point);
      Scripted faulty(GetParam(), point, fault);
      faulty.Run();
      EXPECT_EQ(faulty.report().message(), "");
      EXPECT_EQ(faulty.num_fired(), 1);
      check(plain, faulty);
      if (testing::Test::HasFailure()) break;
    }
    return num_points;
  }
};

TEST_P(FaultTest, ARefusedCallLeavesNoTrace) {
  const int32_t num_points =
      Sweep(FaultKind::kRefusedCall, [](Scripted& plain, Scripted& faulty) {
        EXPECT_EQ(faulty.OutcomeHash(), plain.OutcomeHash());
        EXPECT_EQ(faulty.scheduler().StateHash(),
                  plain.scheduler().StateHash());
        EXPECT_EQ(faulty.num_steps(), plain.num_steps());
        EXPECT_EQ(faulty.plans(), plain.plans());
      });
  EXPECT_GT(num_points, 10);
}

// What does not come back is computed again. A host tier that nothing ever
// reaches is as good as none.
TEST_P(FaultTest, LostCopiesLoseNoRequest) {
  Sweep(FaultKind::kLostCopies, [](Scripted& plain, Scripted& faulty) {
    EXPECT_EQ(faulty.OutcomeHash(), plain.OutcomeHash());
    CompareLostCopies(GetParam(), faulty);
  });
  Scripted faulty(GetParam(), Scripted::kEverywhere, FaultKind::kLostCopies);
  faulty.Run();
  EXPECT_EQ(faulty.report().message(), "");
  Scenario without = GetParam();
  without.options.engine.num_host_blocks = 0;
  Scripted twin(without);
  twin.Run();
  EXPECT_EQ(faulty.plans(), twin.plans());
  EXPECT_EQ(faulty.OutcomeHash(), twin.OutcomeHash());
}

// Nor is it there when the copy back fails: what it was copied to is lost.
TEST_P(FaultTest, LostReturnsLoseNoRequest) {
  Sweep(FaultKind::kLostReturns, [](Scripted& plain, Scripted& faulty) {
    EXPECT_EQ(faulty.OutcomeHash(), plain.OutcomeHash());
    EXPECT_GT(faulty.aftermath().stats.num_cut_requests, 0);
  });
}

// Who finds none is computed again; the next ones may find some.
TEST_P(FaultTest, ATierWithoutRoomLosesNoRequest) {
  Scripted plain(GetParam());
  plain.Run();
  for (int64_t i = 0; i < plain.scheduler().num_swap_outs(); ++i) {
    SCOPED_TRACE(testing::Message() << "swap-out " << i);
    Scripted faulty(GetParam(), -1, FaultKind::kLostCopies, {.swap_outs = {i}});
    faulty.Run();
    EXPECT_EQ(faulty.report().message(), "");
    EXPECT_EQ(faulty.OutcomeHash(), plain.OutcomeHash());
  }
}

std::string NameOf(const testing::TestParamInfo<Scenario>& scenario) {
  return scenario.param.name;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, FaultTest,
                         testing::ValuesIn(FaultScenarios()), NameOf);

TEST(FaultSweepTest, OrdersAndCopiesOfManyScenariosFail) {
  std::map<FaultKind, int32_t> num_scenarios;
  for (const Scenario& scenario : FaultScenarios()) {
    for (const FaultKind kind :
         {FaultKind::kRefusedOrder, FaultKind::kLostCopies,
          FaultKind::kLostReturns}) {
      Scripted plain(scenario, -1, kind);
      plain.Run();
      num_scenarios[kind] += plain.num_points() > 0 ? 1 : 0;
    }
  }
  EXPECT_GE(num_scenarios[FaultKind::kRefusedOrder], 30);
  EXPECT_GE(num_scenarios[FaultKind::kLostCopies], 5);
  EXPECT_GE(num_scenarios[FaultKind::kLostReturns], 5);
}

// A request whose own compression is refused goes on to the same end; where it
// never fits without, it is as if it had been cancelled before that answer.
// With any other order it is as if that had not been made. The counts: whatever
// CompareRefused leaves out cannot grow unseen.
TEST(FaultSweepTest, ARefusedOrderLeavesNoTrace) {
  std::map<Compared, int32_t> num_scenarios;  // by the best comparison
  std::map<Compared, int32_t> num_points;
  std::map<Compared, int32_t> num_sharers_points;  // who starts on what is made
  for (const Scenario& scenario : FaultScenarios()) {
    const std::map<Compared, int32_t> compared = CompareAllRefused(scenario);
    if (scenario.name.starts_with("window_regions_shared")) {
      for (const auto& [what, number] : compared) {
        num_sharers_points[what] += number;
      }
      continue;
    }
    if (compared.empty()) continue;  // without an order
    ++num_scenarios[compared.rbegin()->first];
    for (const auto& [what, number] : compared) num_points[what] += number;
  }
  if (kBrief) return;
  // Commands, and requests that fail.
  EXPECT_GE(num_scenarios[Compared::kState], 13);
  EXPECT_GE(num_points[Compared::kState], 26);
  EXPECT_GE(num_points[Compared::kPlans], 21);
  // Who goes on without, pressure, and drafts next to a command.
  EXPECT_LE(num_scenarios[Compared::kTables], 24);
  EXPECT_LE(num_points[Compared::kUntil], 2);
  EXPECT_GE(num_sharers_points[Compared::kTables], 1);
}

// After it all is as if the steps in flight had not been issued, nor the
// commands given that are lost with them, and goes on from there.
TEST(FaultSweepTest, ALostEngineLosesNoRequest) {
  std::map<AfterLoss, int32_t> num_points;
  for (const Scenario& scenario : FaultScenarios()) {
    Scripted plain(scenario, -1, FaultKind::kLostEngine);
    plain.Run();
    EXPECT_GT(plain.num_points(), 0) << scenario.name;
    int32_t num_other_plans = 0;
    for (int32_t point = 0; point < plain.num_points(); point += kPointStride) {
      SCOPED_TRACE(testing::Message()
                   << scenario.name << ", fault at point " << point);
      Scripted faulty(scenario, point, FaultKind::kLostEngine);
      faulty.Run();
      EXPECT_EQ(faulty.report().message(), "");
      EXPECT_EQ(faulty.num_fired(), 1);
      const AfterLoss compared = CompareLost(scenario, plain, faulty);
      ++num_points[compared];
      num_other_plans += compared < AfterLoss::kPlans ? 1 : 0;
    }
    EXPECT_LE(num_other_plans, 4) << scenario.name;
  }
  if (kBrief) return;
  EXPECT_GE(num_points[AfterLoss::kAll], 800);
  EXPECT_LE(num_points[AfterLoss::kPlans], 286);
  EXPECT_LE(num_points[AfterLoss::kRequests], 20);
  EXPECT_LE(num_points[AfterLoss::kEnd], 14);
}

}  // namespace
}  // namespace blockmgr::sim
