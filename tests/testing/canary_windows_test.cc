// The canary must die of wrong tables of layer groups with windows, too.

#include <functional>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/canary_plans.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

using BlockLists = std::vector<std::vector<int32_t>>;

// The first tokens of a prompt.
std::vector<int32_t> TokensTo(int32_t end) {
  std::vector<int32_t> tokens(static_cast<size_t>(end));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Six tokens of nine.
StepPlan SixOfNine(int32_t slot, const BlockLists& blocks) {
  StepPlan plan = EmptyPlan(1);
  AddStart(slot, TokensTo(9), 0, &plan);
  AddRun(slot, 0, 6, blocks, false, &plan);
  return plan;
}

// Windows of 4 and 2 tokens, pages of 2.
class CanaryWindowsTest : public CanaryTest {
 protected:
  CanaryWindowsTest() : CanaryTest(0, {4, 2}) {}

  static StepPlan First() {
    return SixOfNine(0, {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  }
  // The rest of them.
  static StepPlan Second() {
    StepPlan plan = EmptyPlan(2);
    AddRun(0, 6, 3, {{11, 12}, {13, 14}, {15, 16}}, true, &plan);
    return plan;
  }
  void ExpectNoticed(StepPlan plan, const std::function<void(StepPlan*)>& spoil,
                     const char* message) {
    engine_.Restart();
    ASSERT_OK(Run(First()));
    ASSERT_OK(Run(Second()));
    spoil(&plan);
    EXPECT_THAT(Run(plan),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(message)));
  }
  // Another sequence, of two tokens.
  static StepPlan Other(const BlockLists& blocks) {
    StepPlan plan = EmptyPlan(3);
    AddStart(1, TokensTo(2), 0, &plan);
    AddRun(1, 0, 2, blocks, true, &plan);
    return plan;
  }
};

TEST_F(CanaryWindowsTest, WhatAWindowHasLeftBehindMayBeOfAnother) {
  ASSERT_OK(Run(First()));
  StepPlan other = Other({{4}, {7}, {8}});
  other.id = StepId{2};
  ASSERT_OK(Run(other));
  StepPlan rest = Second();
  rest.id = StepId{3};
  EXPECT_OK(Run(rest));
}

TEST_F(CanaryWindowsTest, NoticesABlockThatIsReleasedTooEarly) {
  // The token after these nine attends to those from 6 on, and from 8 on.
  EXPECT_OK(Run(First()));
  EXPECT_OK(Run(Second()));
  EXPECT_OK(Run(Other({{5}, {9}, {8}})));
  for (const int32_t block : {3, 13, 14, 16}) {
    ExpectNoticed(
        Other({{5}, {9}, {8}}),
        [block](StepPlan* p) { p->blocks[1] = BlockId{block}; },
        "in a table already");
  }
}

TEST_F(CanaryWindowsTest, NoticesABlockThatAStepInFlightReads) {
  ASSERT_OK(Run(First()));
  ASSERT_OK(engine_.Enqueue(Second()));
  ASSERT_OK(engine_.Enqueue(Other({{10}, {5}, {8}})));
  ASSERT_OK(engine_.Execute());
  EXPECT_THAT(engine_.Execute(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("block 5 is handed out by step 3 while step "
                                 "2, in flight, touches it")));
}

// Eight of nine tokens are cached.
StepPlan WindowHit() {
  StepPlan plan = EmptyPlan(3);
  AddStart(1, TokensTo(9), 8, &plan);
  AddRun(1, 8, 1, {{1, 2, 3, 11, 17}, {0, 0, 6, 13, 18}, {0, 0, 0, 15, 19}},
         true, &plan);
  return plan;
}

TEST_F(CanaryWindowsTest, AHitHasThePagesOfEveryWindow) {
  ExpectNoticed(
      WindowHit(), [](StepPlan* p) { p->blocks[13] = BlockId{13}; },
      "group 2 head 0 position 7");
  ExpectNoticed(
      WindowHit(), [](StepPlan* p) { p->blocks[8] = BlockId{6}; },
      "group 1 head 0 position 6");
  ExpectNoticed(
      WindowHit(), [](StepPlan* p) { p->blocks[3] = BlockId{13}; },
      "group 0 head 0 position 6");
  engine_.Restart();
  ASSERT_OK(Run(First()));
  ASSERT_OK(Run(Second()));
  EXPECT_OK(Run(WindowHit()));
}

TEST_F(CanaryWindowsTest, NoticesASourceThatHasLeftPagesOut) {
  ASSERT_OK(Run(First()));
  ASSERT_OK(Run(Second()));
  ASSERT_OK(Run(WindowHit()));
  StepPlan plan = EmptyPlan(4);
  AddStart(2, TokensTo(9), 6, &plan);
  plan.starts[0].source = SequenceSlot{1};
  AddRun(2, 6, 3, {{30, 31}, {32, 33}, {34, 35}}, true, &plan);
  EXPECT_THAT(Run(plan), StatusIs(absl::StatusCode::kInternal,
                                  HasSubstr("without page 1 of group 1")));
}

TEST_F(CanaryWindowsTest, WhatIsComputedFromLostContentStaysWrong) {
  // The group of 2 tokens reads block 9 for the token at 6, and never again.
  const auto sample = [this](BlockId lost, StepId told_by) {
    engine_.Restart();
    for (uint64_t id = 1; id <= 3; ++id) {
      StepPlan plan = First();
      if (id == 2) {
        plan = EmptyPlan(2);
        AddRun(0, 6, 1, {{11}, {13}, {15}}, false, &plan);
      } else if (id == 3) {
        plan = EmptyPlan(3);
        AddRun(0, 7, 2, {{12}, {14}, {16}}, true, &plan);
      }
      if (plan.id == told_by) engine_.LoseBlocks({lost});
      EXPECT_OK(engine_.Enqueue(plan));
      const absl::StatusOr<StepResult> result = engine_.Execute();
      EXPECT_OK(result);
      if (id == 3) return result->sampled[0];
    }
    return -1;
  };
  const int32_t right = sample(BlockId{9}, StepId{4});
  EXPECT_NE(sample(BlockId{9}, StepId{1}), right);
  EXPECT_EQ(sample(BlockId{9}, StepId{2}), right);
  EXPECT_NE(sample(BlockId{6}, StepId{2}), right);
  EXPECT_EQ(sample(BlockId{4}, StepId{1}), right);
}

// The only group attends to 4 tokens.
class CanaryWindowTest : public CanaryTest {
 protected:
  CanaryWindowTest() : CanaryTest(4) {}
  // Eight of nine tokens, cached.
  static StepPlan Hit(const std::vector<int32_t>& blocks) {
    StepPlan plan = EmptyPlan(2);
    AddStart(1, TokensTo(9), 8, &plan);
    AddRun(1, 8, 1, {blocks}, true, &plan);
    return plan;
  }
};

TEST_F(CanaryWindowTest, TheTailBeginsWithPagesLeftOut) {
  StepPlan plan = EmptyPlan(1);
  AddStart(0, TokensTo(9), 0, &plan);
  AddRun(0, 0, 8, {{1, 2, 3, 4}}, false, &plan);
  ASSERT_OK(Run(plan));
  ASSERT_OK(Run(Hit({0, 0, 3, 4, 5})));
  StepPlan other = EmptyPlan(3);
  AddStart(2, TokensTo(3), 0, &other);
  AddRun(2, 0, 3, {{1, 2}}, true, &other);
  ASSERT_OK(Run(other));
  StepPlan rest = EmptyPlan(4);
  AddRun(0, 8, 1, {{6}}, true, &rest);
  EXPECT_OK(Run(rest));
  StepPlan wrong = Hit({0, 0, 3, 3, 7});
  wrong.id = StepId{5};
  wrong.starts[0].slot = SequenceSlot{3};
  wrong.slots[0] = SequenceSlot{3};
  EXPECT_THAT(Run(wrong), StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("group 0 head 0 position 6")));
}

TEST_F(CanaryWindowTest, NoticesABlockStillInTheWindow) {
  StepPlan plan = EmptyPlan(1);
  AddStart(0, TokensTo(9), 0, &plan);
  AddRun(0, 0, 8, {{1, 2, 3, 4}}, false, &plan);
  ASSERT_OK(Run(plan));
  StepPlan other = EmptyPlan(2);
  AddStart(2, TokensTo(3), 0, &other);
  AddRun(2, 0, 3, {{1, 3}}, true, &other);
  EXPECT_THAT(Run(other), StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("block 3 is in a table already")));
}

}  // namespace
}  // namespace blockmgr
