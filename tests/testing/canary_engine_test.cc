// The canary must die: each test makes a plan wrong in one way.

#include "tests/testing/canary_engine.h"

#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/canary_plans.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInternal = absl::StatusCode::kInternal;

class CanaryEngineTest : public CanaryTest {
 protected:
  // A sequence of six tokens in `blocks`, computed at once.
  static StepPlan Prompt(uint64_t id, int32_t slot,
                         const std::vector<int32_t>& blocks) {
    StepPlan plan = EmptyPlan(id);
    AddStart(slot, kTokens, 0, &plan);
    AddRun(slot, 0, 6, {blocks}, true, &plan);
    return plan;
  }
  static StepPlan LeavePlan(uint64_t id);
  static StepPlan ReturnPlan(uint64_t id);

  // After slot 0's prompt, the plan does not pass once it was spoiled.
  void ExpectNoticed(StepPlan plan, const std::function<void(StepPlan*)>& spoil,
                     const char* message) {
    engine_.Restart();
    EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
    spoil(&plan);
    EXPECT_THAT(Run(plan), StatusIs(kInternal, HasSubstr(message)));
  }

  inline static const std::vector<int32_t> kTokens = {5, 6, 7, 8, 9, 10};
};

TEST_F(CanaryEngineTest, ARightPlanPasses) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  StepPlan plan = EmptyPlan(2);
  AddStart(1, {5, 6, 7, 8, 1}, 4, &plan);
  AddRun(0, 6, 1, {{4}}, true, &plan);
  AddRun(1, 4, 1, {{1, 2, 5}}, true, &plan);
  EXPECT_THAT(Run(plan), IsOk());
}

TEST_F(CanaryEngineTest, SamplesWhatTheRequestOutputsAlone) {
  ASSERT_THAT(engine_.Enqueue(Prompt(1, 0, {1, 2, 3})), IsOk());
  ASSERT_OK_AND_ASSIGN(const StepResult result, engine_.Execute());
  EXPECT_EQ(result.sampled, engine_.OutputsAlone(kTokens, 1, {}));
}

TEST_F(CanaryEngineTest, NoticesABlockThatIsGivenTwice) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  EXPECT_THAT(Run(Prompt(2, 1, {4, 5, 3})),
              StatusIs(kInternal, HasSubstr("in a table already")));
}

// tests/engine/tables have what tables refuse, plan by plan.
TEST_F(CanaryEngineTest, NoticesWhatTablesRefuse) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 0, 3})),
              StatusIs(kInternal, HasSubstr("expected block ids")));
}

TEST_F(CanaryEngineTest, NoticesAHitOnOtherContent) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  StepPlan plan = EmptyPlan(2);
  AddStart(1, {5, 6, 7, 9, 1}, 4, &plan);
  AddRun(1, 4, 1, {{1, 2, 5}}, true, &plan);
  EXPECT_THAT(Run(plan), StatusIs(kInternal, HasSubstr("position 3")));
}

TEST_F(CanaryEngineTest, NoticesAHitOnWhatIsNotThereYet) {
  StepPlan plan = EmptyPlan(1);
  AddStart(1, {5, 6, 7}, 2, &plan);
  AddRun(1, 2, 1, {{1, 2}}, true, &plan);
  EXPECT_THAT(Run(plan), StatusIs(kInternal, HasSubstr("position 0")));
}

TEST_F(CanaryEngineTest, NoticesAWriteToASharedBlock) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  StepPlan plan = EmptyPlan(2);
  AddStart(1, kTokens, 4, &plan);
  AddRun(1, 4, 2, {{1, 2, 4}}, true, &plan);
  EXPECT_THAT(Run(plan), IsOk());
  // The sharer's table points to the last block too: its next token goes there.
  plan = EmptyPlan(3);
  AddStart(2, {5, 6, 7, 8, 9, 10, 11}, 6, &plan);
  AddRun(2, 6, 1, {{1, 2, 4, 4}}, true, &plan);
  EXPECT_FALSE(Run(plan).ok());
}

TEST_F(CanaryEngineTest, NoticesABlockHandedOutBehindAStepInFlight) {
  ASSERT_THAT(engine_.Enqueue(Prompt(1, 0, {1, 2, 3})), IsOk());
  StepPlan plan = EmptyPlan(2);
  plan.released = {SequenceSlot{0}};
  AddStart(1, kTokens, 0, &plan);
  AddRun(1, 0, 6, {{4, 5, 3}}, true, &plan);
  ASSERT_THAT(engine_.Enqueue(plan), IsOk());
  EXPECT_THAT(engine_.Execute(), IsOk());
  EXPECT_THAT(engine_.Execute(),
              StatusIs(kInternal, HasSubstr("step 1, in flight")));
}

// Starts slot 1 with the first five of the six tokens of slot 0.
class CanarySourceTest : public CanaryEngineTest {
 protected:
  static StepPlan Fork() {
    StepPlan plan = EmptyPlan(2);
    AddStart(1, kTokens, 5, &plan);
    plan.starts[0].source = SequenceSlot{0};
    plan.copies = {{.slot = SequenceSlot{1},
                    .blocks = {BlockId{3}, BlockId{4}},
                    .num_tokens = 1}};
    AddRun(1, 5, 1, {{}}, true, &plan);
    return plan;
  }
  static StepPlan Restart(int32_t num_cached) {
    StepPlan plan = EmptyPlan(2);
    AddStart(0, kTokens, num_cached, &plan);
    plan.starts[0].source = SequenceSlot{0};
    AddRun(0, num_cached, 6 - num_cached, {{7, 8}}, true, &plan);
    return plan;
  }
};

TEST_F(CanarySourceTest, ForksReadWhatTheySharedAndWriteTheirOwn) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  EXPECT_THAT(Run(Fork()), IsOk());
  EXPECT_THAT(engine_.row(SequenceSlot{1}).groups[0].blocks,
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{4}));
  StepPlan plan = EmptyPlan(3);
  AddRun(0, 6, 1, {{5}}, true, &plan);
  AddRun(1, 6, 1, {{6}}, true, &plan);
  EXPECT_THAT(Run(plan), IsOk());
}

TEST_F(CanarySourceTest, NoticesWrongForks) {
  const auto expect = [this](const std::function<void(StepPlan*)>& spoil,
                             const char* message) {
    ExpectNoticed(Fork(), spoil, message);
  };
  expect([](StepPlan* p) { p->copies.clear(); }, "written and shared");
  expect([](StepPlan* p) { p->copies[0].num_tokens = 2; }, "copies 2 tokens");
  expect([](StepPlan* p) { p->copies[0].blocks.destination = BlockId{2}; },
         "new block 2 is in a table already");
}

// Starts slot 1 with the first three of the six tokens that slot 0 left in the
// cache: a block of two is shared, of the next one a row is copied.
class CanaryPartTest : public CanaryEngineTest {
 protected:
  static StepPlan Part() {
    StepPlan plan = EmptyPlan(2);
    AddStart(1, kTokens, 3, &plan);
    plan.copies = {{.slot = SequenceSlot{1},
                    .blocks = {BlockId{2}, BlockId{4}},
                    .num_tokens = 1}};
    AddRun(1, 3, 3, {{1, 4, 5}}, true, &plan);
    return plan;
  }
};

TEST_F(CanaryPartTest, ReadsTheRowsThatWereCopied) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  EXPECT_THAT(Run(Part()), IsOk());
  EXPECT_THAT(engine_.row(SequenceSlot{1}).groups[0].blocks,
              ElementsAre(BlockId{1}, BlockId{4}, BlockId{5}));
}

TEST_F(CanaryPartTest, NoticesWrongParts) {
  const auto expect = [this](const std::function<void(StepPlan*)>& spoil,
                             const char* message) {
    ExpectNoticed(Part(), spoil, message);
  };
  expect([](StepPlan* p) { p->copies[0].num_tokens = 2; }, "copies 2 tokens");
  expect([](StepPlan* p) { p->copies[0].blocks.destination = BlockId{5}; },
         "expected its block 4");
  expect([](StepPlan* p) { p->copies[0].blocks.source = BlockId{3}; },
         "got request");
}

// What is copied of a lost block is lost, and said to be.
TEST_F(CanaryPartTest, ACopyOfALostBlockIsLost) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  engine_.LoseBlocks({BlockId{2}});
  StepPlan other = EmptyPlan(2);
  AddRun(0, 6, 1, {{6}}, true, &other);
  EXPECT_THAT(Run(other), IsOk());
  StepPlan plan = Part();
  plan.id = StepId{3};
  ASSERT_THAT(engine_.Enqueue(plan), IsOk());
  ASSERT_OK_AND_ASSIGN(const StepResult result, engine_.Execute());
  EXPECT_THAT(result.lost_blocks, ElementsAre(BlockId{4}));
}

TEST_F(CanarySourceTest, WhoLostABlockSamplesNonsenseUntilItStartsAgain) {
  const std::vector<int32_t> alone = engine_.OutputsAlone(kTokens, 2, {});
  engine_.LoseBlocks({BlockId{2}, BlockId{9}});
  ASSERT_THAT(engine_.Enqueue(Prompt(1, 0, {1, 2, 3})), IsOk());
  ASSERT_OK_AND_ASSIGN(StepResult result, engine_.Execute());
  EXPECT_THAT(result.lost_blocks, ElementsAre(BlockId{2}, BlockId{9}));
  EXPECT_THAT(result.sampled, ElementsAre(alone[0]));  // lost afterwards
  EXPECT_TRUE(engine_.IsDamaged(SequenceSlot{0}));
  StepPlan plan = EmptyPlan(2);
  AddRun(0, 6, 1, {{4}}, true, &plan);
  ASSERT_THAT(engine_.Enqueue(plan), IsOk());
  ASSERT_OK_AND_ASSIGN(result, engine_.Execute());
  EXPECT_THAT(result.sampled, testing::Not(ElementsAre(alone[1])));
  plan = Restart(2);
  plan.id = StepId{3};
  ASSERT_THAT(engine_.Enqueue(plan), IsOk());
  ASSERT_OK_AND_ASSIGN(result, engine_.Execute());
  EXPECT_FALSE(engine_.IsDamaged(SequenceSlot{0}));
  EXPECT_THAT(result.sampled, ElementsAre(alone[0]));
}

TEST_F(CanarySourceTest, NoticesARestartOnWhatIsLost) {
  engine_.LoseBlocks({BlockId{2}});
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  StepPlan plan = Restart(4);
  plan.blocks.pop_back();
  plan.block_offsets.back() = 1;
  EXPECT_THAT(Run(plan), IsOk());
  EXPECT_TRUE(engine_.IsDamaged(SequenceSlot{0}));
}

class CanaryOrderTest : public CanaryEngineTest {
 protected:
  // The prompt above with an order to leave one page per head in `block`.
  StepPlan WithOrder(int32_t block) {
    StepPlan plan = Prompt(1, 0, {1, 2, 3});
    EvictionOrder order;
    order.slot = SequenceSlot{0};
    order.cut = 4;
    order.length = 6;
    order.policy.scorer.kind = ScorerKind::kStreaming;
    order.policy.scorer.sinks = 0;
    order.target.kind = EvictionTarget::Kind::kTokens;
    order.target.tokens = 2;
    order.num_destinations = 1;
    order.page_total = 4;
    plan.evictions.push_back(order);
    plan.destinations.push_back(BlockId{block});
    return plan;
  }
};

TEST_F(CanaryOrderTest, CarriesOutARightOrderAndReadsWhatIsLeft) {
  for (const int32_t block : {9, 1, 2}) {
    engine_.Restart();
    EXPECT_THAT(Run(WithOrder(block)), IsOk());
    StepPlan plan = EmptyPlan(2);
    AddRun(0, 6, 1, {{4}}, true, &plan);
    EXPECT_THAT(Run(plan), IsOk());
    const SequenceTable& table = engine_.row(SequenceSlot{0});
    EXPECT_EQ(table.groups[0].region.cut, 4);
    EXPECT_THAT(table.groups[0].blocks, ElementsAre(BlockId{3}, BlockId{4}));
  }
}

TEST_F(CanaryOrderTest, NoticesWrongNumbers) {
  StepPlan plan = WithOrder(9);
  plan.evictions[0].page_total = 5;
  EXPECT_THAT(Run(plan), StatusIs(kInternal, HasSubstr("page total 5")));
}

// Slot 0's six tokens leave for host blocks 4, 2 and 0.
StepPlan CanaryEngineTest::LeavePlan(uint64_t id) {
  StepPlan plan = Prompt(id, 1, {7, 8, 9});
  plan.swap_outs = {{.slot = SequenceSlot{0},
                     .swap = SwapId{1},
                     .num_tokens = 6,
                     .num_transfers = 3}};
  plan.transfers_out = {{BlockId{1}, HostBlockId{4}},
                        {BlockId{2}, HostBlockId{2}},
                        {BlockId{3}, HostBlockId{0}}};
  plan.released = {SequenceSlot{0}};
  return plan;
}

// Five of them come back to blocks 10, 1 and 2, and one more is computed.
StepPlan CanaryEngineTest::ReturnPlan(uint64_t id) {
  StepPlan plan = EmptyPlan(id);
  AddStart(2, {5, 6, 7, 8, 9, 10}, 5, &plan);
  plan.starts[0].swap = SwapId{1};
  plan.starts[0].num_transfers = 3;
  plan.transfers_in = {{BlockId{10}, HostBlockId{4}},
                       {BlockId{1}, HostBlockId{2}},
                       {BlockId{2}, HostBlockId{0}}};
  AddRun(2, 5, 1, {{10, 1, 2}}, true, &plan);
  return plan;
}

TEST_F(CanaryEngineTest, ARightSwapPasses) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  // Their memory is others' in the same step.
  StepPlan leave = LeavePlan(2);
  leave.blocks = {BlockId{3}, BlockId{1}, BlockId{9}};
  EXPECT_THAT(Run(leave), IsOk());
  StepPlan plan = EmptyPlan(3);
  plan.released = {SequenceSlot{1}};
  AddStart(3, kTokens, 0, &plan);
  AddRun(3, 0, 6, {{7, 8, 9}}, true, &plan);
  EXPECT_THAT(Run(plan), IsOk());
  EXPECT_THAT(Run(ReturnPlan(4)), IsOk());
  StepPlan decode = EmptyPlan(5);
  AddRun(2, 6, 1, {{11}}, true, &decode);
  EXPECT_THAT(Run(decode), IsOk());
}

TEST_F(CanaryEngineTest, NoticesWrongSwapOuts) {
  ExpectNoticed(
      LeavePlan(2), [](StepPlan* plan) { plan->swap_outs[0].num_tokens = 7; },
      "expected 1 to 6 tokens (of slot 0), got 7");
}

TEST_F(CanaryEngineTest, NoticesReturnsToBlocksOfOthers) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  EXPECT_THAT(Run(LeavePlan(2)), IsOk());
  StepPlan plan = ReturnPlan(3);
  plan.transfers_in[1].block = BlockId{8};
  plan.blocks[1] = BlockId{8};
  EXPECT_THAT(
      Run(plan),
      StatusIs(kInternal, HasSubstr("new block 8 is in a table already")));
}

TEST_F(CanaryEngineTest, NoticesHostBlocksThatStepsInFlightTouch) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  EXPECT_THAT(Run(LeavePlan(2)), IsOk());
  // The step that reads them is not over when they are handed out again.
  EXPECT_THAT(engine_.Enqueue(ReturnPlan(3)), IsOk());
  StepPlan plan = LeavePlan(4);
  plan.starts.clear();
  plan.start_tokens.clear();
  plan.swap_outs[0].slot = SequenceSlot{1};
  plan.swap_outs[0].swap = SwapId{2};
  plan.transfers_out[0].block = BlockId{7};
  plan.transfers_out[1].block = BlockId{8};
  plan.transfers_out[2].block = BlockId{9};
  plan.released = {SequenceSlot{1}};
  plan.slots = {SequenceSlot{2}};
  plan.positions = {6};
  plan.num_tokens = {1};
  plan.block_offsets = {0, 1};
  plan.blocks = {BlockId{11}};
  EXPECT_THAT(engine_.Enqueue(plan), IsOk());
  EXPECT_THAT(engine_.Execute().status(), IsOk());
  EXPECT_THAT(engine_.Execute().status(),
              StatusIs(kInternal, HasSubstr("while step 3, in flight")));
}

TEST_F(CanaryEngineTest, ReportsLostHostBlocks) {
  EXPECT_THAT(Run(Prompt(1, 0, {1, 2, 3})), IsOk());
  engine_.LoseHostBlocks({HostBlockId{2}});
  ASSERT_THAT(engine_.Enqueue(LeavePlan(2)), IsOk());
  ASSERT_OK_AND_ASSIGN(const StepResult left, engine_.Execute());
  EXPECT_THAT(left.lost_host_blocks, ElementsAre(HostBlockId{2}));
  ASSERT_THAT(engine_.Enqueue(ReturnPlan(3)), IsOk());
  ASSERT_OK_AND_ASSIGN(const StepResult back, engine_.Execute());
  EXPECT_THAT(back.lost_blocks, ElementsAre(BlockId{1}));
}

}  // namespace
}  // namespace blockmgr
