#include "engine/tables/plan_checker.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/tables/tables_fixture.h"
#include "tests/engine/tables/tables_state_fixture.h"
#include "tests/engine/tables/tables_windows_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr SwapId kHeldSwap{6};

class PlanCheckerTest : public TablesStateTest {
 protected:
  absl::Status Check(const StepPlan& plan) {
    return PlanChecker(state_, plan, &notes_).Check();
  }
  // Computes token 40 of kTestSlot.
  static StepPlan NextToken() { return RunPlan(kTestSlot, 40, 1, {{}, {}}); }
  // All 40 tokens leave for the five host blocks.
  static StepPlan LeavePlan() {
    StepPlan plan;
    plan.released = {kTestSlot};
    plan.swap_outs = {{.slot = kTestSlot,
                       .swap = SwapId{7},
                       .num_tokens = 40,
                       .num_transfers = 5}};
    int32_t host = 0;
    for (const int32_t block : {1, 2, 3, 12, 13}) {
      plan.transfers_out.push_back(
          {.block = BlockId{block}, .host = HostBlockId{host++}});
    }
    return plan;
  }

  PlanNotes notes_;
};

TEST_F(PlanCheckerTest, ACheckThatIsRepeatedSaysTheSame) {
  const StepPlan next = NextToken();
  const StepPlan leave = LeavePlan();
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(Check(next));
    EXPECT_OK(Check(leave));
  }
}

TEST_F(PlanCheckerTest, NotesOfARefusedPlanHaveNoMeaning) {
  state_.swapped[kHeldSwap];
  StepPlan plan = NextToken();
  plan.dropped_swaps = {kHeldSwap};
  plan.released = {kTestSlot};
  EXPECT_THAT(Check(plan), IsRefused("scheduled, but not in use"));
  plan.released.clear();
  EXPECT_OK(Check(plan));
  plan.dropped_swaps = {kHeldSwap, kHeldSwap};
  EXPECT_THAT(Check(plan), IsRefused("swapped out, once"));
}

TEST_F(PlanCheckerTest, HostBlocksAreHeldUntilTheirSwapEnds) {
  StepPlan plan = LeavePlan();
  state_.host_holders[1] = kHeldSwap;
  EXPECT_OK(Check(plan));  // the swap has ended
  state_.swapped[kHeldSwap];
  EXPECT_THAT(Check(plan), IsRefused("expected free host blocks, each once, "
                                     "got 1"));
  plan.dropped_swaps = {kHeldSwap};
  EXPECT_OK(Check(plan));
  plan.transfers_out[2].host = HostBlockId{1};
  EXPECT_THAT(Check(plan), IsRefused("each once, got 1"));
}

TEST_F(PlanCheckerTest, AllGroupsReachTheSamePage) {
  state_.row(kTestSlot).tokens.assign(60, 5);
  StepPlan plan = RunPlan(kTestSlot, 40, 20, {{4}, {14}});
  EXPECT_OK(Check(plan));
  plan = RunPlan(kTestSlot, 40, 20, {{4}, {14, 15}});
  EXPECT_THAT(Check(plan), IsRefused("below 64, as in group 0, got blocks for "
                                     "positions below 80"));
  plan = RunPlan(kTestSlot, 40, 20, {{4}, {0}});
  EXPECT_THAT(Check(plan), IsRefused("group 1: expected a block for page 3"));
}

}  // namespace
}  // namespace blockmgr
