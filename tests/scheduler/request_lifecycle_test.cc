// Who is served first: policies, aging, bypasses, tenants.

#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

Request OfTenant(Request request, std::string tenant) {
  request.scope.tenant = std::move(tenant);
  return request;
}

// Requests of tenant a, of which some run and some wait.
class QuotaBoundaryTest : public testing::Test {
 protected:
  static SchedulerOptions Options(const TenantLimits& limits) {
    SchedulerOptions options = PlainOptions();
    options.max_num_seqs = 2;
    options.max_bypasses = 4;
    options.tenants["a"] = limits;
    return options;
  }
  void Start(const TenantLimits& limits) {
    driver_.emplace(SmallLayout(1, 10), Options(limits));
  }
  absl::StatusOr<RequestId> Try(int32_t num_prompt, int32_t max_tokens,
                                const char* tenant = "a") {
    ++num_requests_;
    Request request = MakeRequest(absl::StrCat("r", num_requests_), num_prompt,
                                  max_tokens, num_requests_);
    return driver_->Submit(OfTenant(std::move(request), tenant));
  }
  static auto Refuses(const char* what) {
    return StatusIs(absl::StatusCode::kResourceExhausted,
                    absl::StrCat("tenant 'a' is over its quota ", what));
  }
  // Steps until it has ended.
  void Finish(RequestId id) {
    driver_->RunUntil([&] { return driver_->served(id).finish.has_value(); });
  }

  std::optional<SchedulerDriver> driver_;
  int32_t num_requests_ = 0;
};

TEST_F(QuotaBoundaryTest, RequestsCountUntilTheyEnd) {
  Start({.max_requests = 3});
  const auto refused = Refuses("max_requests: expected at most 3, got 3 + 1");
  ASSERT_OK_AND_ASSIGN(const RequestId first, Try(2, 2));
  ASSERT_OK_AND_ASSIGN(const RequestId second, Try(2, 9));
  ASSERT_OK_AND_ASSIGN(const RequestId third, Try(2, 2));
  EXPECT_THAT(Try(1, 1), refused);
  driver_->Step();  // two run
  EXPECT_THAT(Try(1, 1), refused);
  Finish(first);
  EXPECT_THAT(Try(2, 2), IsOk());
  EXPECT_THAT(Try(1, 1), refused);
  ASSERT_OK(driver_->Cancel(third));
  EXPECT_THAT(Try(2, 2), IsOk());
  EXPECT_THAT(Try(1, 1), refused);
  ASSERT_OK(driver_->Cancel(second));
  EXPECT_THAT(Try(2, 2), IsOk());
  EXPECT_THAT(Try(1, 1), refused);
  EXPECT_THAT(Try(1, 1, "b"), IsOk());
  driver_->Finish();
}

TEST_F(QuotaBoundaryTest, QueuedTokensCountUntilTheyAreAdmitted) {
  Start({.max_queued_tokens = 8});
  EXPECT_THAT(Try(9, 1),
              Refuses("max_queued_tokens: expected at most 8, got 0 + 9"));
  EXPECT_THAT(Try(3, 2), IsOk());
  EXPECT_THAT(Try(6, 2),
              Refuses("max_queued_tokens: expected at most 8, got 3 + 6"));
  EXPECT_THAT(Try(3, 2), IsOk());
  ASSERT_OK_AND_ASSIGN(const RequestId third, Try(2, 2));
  EXPECT_THAT(Try(1, 1),
              Refuses("max_queued_tokens: expected at most 8, got 8 + 1"));
  driver_->Step();  // two run
  EXPECT_THAT(Try(7, 1),
              Refuses("max_queued_tokens: expected at most 8, got 2 + 7"));
  EXPECT_THAT(Try(6, 1), IsOk());
  ASSERT_OK(driver_->Cancel(third));
  EXPECT_THAT(Try(3, 1),
              Refuses("max_queued_tokens: expected at most 8, got 6 + 3"));
  EXPECT_THAT(Try(2, 1), IsOk());
  driver_->Finish();
}

// Who is preempted has been let in once.
TEST_F(QuotaBoundaryTest, PreemptedTokensAreNotQueuedAgain) {
  Start({.max_queued_tokens = 8});
  EXPECT_THAT(Try(4, 6, "b"), IsOk());
  EXPECT_THAT(Try(4, 6), IsOk());
  driver_->RunUntil(
      [&] { return driver_->scheduler().stats().num_preemptions > 0; });
  EXPECT_EQ(driver_->scheduler().stats().num_waiting, 1);
  EXPECT_THAT(Try(8, 1), IsOk());
  EXPECT_THAT(Try(1, 1),
              Refuses("max_queued_tokens: expected at most 8, got 8 + 1"));
  driver_->Finish();
}

TEST_F(QuotaBoundaryTest, BlocksCountWhileTheirRequestsRun) {
  Start({.max_blocks = 7});
  // Its peak is one token less than it has in the end.
  EXPECT_THAT(Try(4, 5), Refuses("max_blocks: expected at most 7, got 0 + 8"));
  EXPECT_THAT(Try(4, 4), IsOk());
  driver_->Drain();
  for (const int32_t num_prompt : {1, 2}) {
    SCOPED_TRACE(num_prompt);
    for (const bool cancels : {false, true}) {
      SCOPED_TRACE(cancels);
      ASSERT_OK_AND_ASSIGN(const RequestId first, Try(3, 3));
      ASSERT_OK_AND_ASSIGN(const RequestId second, Try(num_prompt, 2));
      driver_->Step();
      EXPECT_EQ(driver_->CountTokensInPlan(first), 3);
      EXPECT_EQ(driver_->CountTokensInPlan(second), num_prompt == 1 ? 1 : 0);
      if (cancels) {
        ASSERT_OK(driver_->Cancel(first));
      } else {
        Finish(first);
      }
      if (num_prompt == 2) {
        driver_->Step();
        EXPECT_EQ(driver_->CountTokensInPlan(second), 2);
      }
      driver_->Drain();
    }
  }
  driver_->CheckQuiescent();
}

TEST_F(QuotaBoundaryTest, BlocksOfThePreemptedAreFreeForOthers) {
  Start({.max_blocks = 9});
  EXPECT_THAT(Try(4, 6, "b"), IsOk());
  ASSERT_OK_AND_ASSIGN(const RequestId big, Try(4, 6));
  ASSERT_OK_AND_ASSIGN(const RequestId small, Try(1, 1));
  driver_->RunUntil(
      [&] { return driver_->scheduler().stats().num_preemptions > 0; });
  EXPECT_TRUE(driver_->served(small).outputs.empty());
  driver_->Step();
  EXPECT_EQ(driver_->SlotOf(big), kNoSequenceSlot);
  EXPECT_EQ(driver_->CountTokensInPlan(small), 1);
  driver_->Finish();
}

// A tenant at its quota of blocks waits, and nobody waits with it.
TEST(TenantQuotaTest, OthersPassATenantWithoutBlocks) {
  SchedulerOptions options = PlainOptions();
  options.tenants["a"].max_blocks = 12;
  SchedulerDriver driver(SmallLayout(1, 100), options);
  const RequestId a1 = Submit(&driver, OfTenant(MakeRequest("a1", 4, 5), "a"));
  const RequestId a2 = Submit(&driver, OfTenant(MakeRequest("a2", 4, 5), "a"));
  const RequestId a3 = Submit(&driver, OfTenant(MakeRequest("a3", 1, 2), "a"));
  const RequestId b = Submit(&driver, OfTenant(MakeRequest("b", 4, 5), "b"));
  driver.Step();
  EXPECT_EQ(driver.CountTokensInPlan(a1), 4);
  EXPECT_EQ(driver.CountTokensInPlan(a2), 0);
  EXPECT_EQ(driver.CountTokensInPlan(a3), 0);  // behind a2
  EXPECT_EQ(driver.CountTokensInPlan(b), 4);
  driver.RunUntil([&] { return driver.served(a1).finish.has_value(); });
  driver.Step();
  EXPECT_EQ(driver.CountTokensInPlan(a2), 4);
  EXPECT_EQ(driver.CountTokensInPlan(a3), 1);
  EXPECT_EQ(driver.scheduler().stats().num_passes, 0);
  driver.Finish();
}

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
  options.engine.num_scorer_states = 1;
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
  driver.Finish();
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
  driver.Finish();
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
  options.engine.num_host_blocks = 400;
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
  driver.Finish();
}

}  // namespace
}  // namespace blockmgr
