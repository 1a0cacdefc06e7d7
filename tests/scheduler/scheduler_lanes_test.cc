// Who needs something that all of a kind lack, and whom that keeps waiting.
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// More than a step looks at.
constexpr int kManyWaiting = 40;

// Steps until the request has its first token.
int StepsUntilServed(SchedulerDriver* driver, RequestId id) {
  int steps = 0;
  driver->RunUntil([&] {
    ++steps;
    return !driver->served(id).outputs.empty();
  });
  return steps;
}

// Behind requests that lack a scorer state, which one that runs holds.
int StepsBehindScorers(bool forks) {
  SchedulerOptions options = PlainOptions();
  options.num_scorer_states = 1;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  Request parent = MakeRequest("p", 20, 60);
  parent.eviction = Recency(8);
  parent.eviction.policy.scorer = ScorerSpec{};
  parent.eviction.policy.scorer.kind = ScorerKind::kH2o;
  Submit(&driver, parent);
  driver.Step();
  driver.Step();
  for (int i = 0; i < kManyWaiting; ++i) {
    Request other = parent;
    other.id = absl::StrCat("f", i);
    other.max_tokens = 20;
    if (forks) {
      other.eviction = {};
      other.fork_of = "p";
    }
    Submit(&driver, other);
  }
  const int steps =
      StepsUntilServed(&driver, Submit(&driver, MakeRequest("z", 8, 2, 3)));
  driver.Drain();
  driver.CheckQuiescent();
  return steps;
}

TEST(LanesTest, ForksThatLackAScorerStateKeepNobodyOut) {
  EXPECT_EQ(StepsBehindScorers(true), StepsBehindScorers(false));
}

// Behind long prompts, of which one is computed at a time.
int StepsBehindLongPrompts(bool forks) {
  SchedulerOptions options = PlainOptions();
  options.long_prefill_token_threshold = 8;
  options.max_long_prefills = 1;
  options.max_num_seqs = 60;
  SchedulerDriver driver(SmallLayout(4, 2000), options);
  const RequestId parent = Submit(&driver, MakeRequest("p", 100, 60));
  for (int i = 0; i < kManyWaiting; ++i) {
    Request other = MakeRequest(absl::StrCat("f", i), 100, 20);
    if (forks) other.fork_of = "p";
    Submit(&driver, other);
  }
  const RequestId behind = Submit(&driver, MakeRequest("z", 8, 2, 3));
  EXPECT_OK(driver.Cancel(parent));
  const int steps = StepsUntilServed(&driver, behind);
  driver.Drain();
  driver.CheckQuiescent();
  return steps;
}

// A look at each of them shows that it is a long prompt now.
TEST(LanesTest, ForksOfWhatIsGoneKeepNobodyOutForLong) {
  constexpr int kStepsToLookAtAll = kManyWaiting / 16 + 1;
  EXPECT_LE(StepsBehindLongPrompts(true),
            StepsBehindLongPrompts(false) + kStepsToLookAtAll);
}

// With the engine, what was swapped out is lost: then it is long again.
TEST(LanesTest, WhatLostItsSwapKeepsNobodyOutForLong) {
  SchedulerOptions options = PlainOptions();
  options.num_host_blocks = 400;
  options.max_num_seqs = 40;
  options.long_prefill_token_threshold = 8;
  options.max_long_prefills = 1;
  options.max_model_len = 4000;
  SchedulerDriver driver(SmallLayout(4, 140), options,
                         {.num_host_blocks = 400});
  for (int i = 0; i < kManyWaiting; ++i) {
    Submit(&driver, MakeRequest(absl::StrCat("r", i), 9, 100, i));
  }
  for (int i = 0; i < 60; ++i) driver.Step();
  // More than a step looks at.
  ASSERT_GT(driver.scheduler().stats().num_swapped, 16);
  driver.LoseEngine();
  const RequestId late = Submit(&driver, MakeRequest("z", 4, 2, 70));
  EXPECT_LE(StepsUntilServed(&driver, late), kManyWaiting / 16 + 4);
  driver.Drain();
  driver.CheckQuiescent();
}

}  // namespace
}  // namespace blockmgr
