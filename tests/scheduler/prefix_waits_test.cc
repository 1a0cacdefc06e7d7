// Those who wait for what others have hold nobody up who does not: for a prefix
// in the making, a quota, the turn of a long prompt, a scorer's state. More of
// each than a step would look at.

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

SchedulerOptions WaitingOptions() {
  SchedulerOptions options = CachingOptions();
  options.long_prefill_token_threshold = 8;
  options.min_prefix_wait_tokens = 4;
  options.max_prefix_wait_steps = 1000;
  options.max_waiting = 1000;
  return options;
}

// "a" computes a prompt of 40 tokens, 8 in a step; "b" has its prompt, too.
class PrefixWaitTest : public testing::Test {
 protected:
  RequestId SubmitB() { return Submit(&driver_, MakeRequest("b", 40, 1)); }
  bool Runs(RequestId id) const {
    return driver_.SlotOf(id) != kNoSequenceSlot;
  }
  int32_t CountCachedTokens(RequestId id) const {
    return driver_.served(id).finish->num_cached_tokens;
  }

  SchedulerDriver driver_{SmallLayout(2, 200), WaitingOptions()};
  const RequestId a_ = Submit(&driver_, MakeRequest("a", 40, 1));
};

TEST_F(PrefixWaitTest, APrefixInTheMakingIsNotComputedTwice) {
  const RequestId b = SubmitB();
  const RequestId c = Submit(&driver_, MakeRequest("c", 12, 1, 1));
  driver_.Step();
  EXPECT_FALSE(Runs(b));
  EXPECT_EQ(driver_.CountTokensInPlan(c), 8);  // passes it
  driver_.Finish();
  EXPECT_EQ(CountCachedTokens(b), 38);
  const SchedulerStats stats = driver_.scheduler().stats();
  EXPECT_EQ(stats.num_computed_tokens, 40u + 12u + 2u);
  EXPECT_EQ(stats.num_passes, 0u);
  EXPECT_EQ(stats.num_prefix_waits, 5u);
}

// From where prompts part on there is nothing to wait for.
TEST_F(PrefixWaitTest, WaitsOnlyAsLongAsPromptsAreEqual) {
  Request request = MakeRequest("b", 40, 1);
  for (size_t i = 13; i < request.prompt.size(); ++i) request.prompt[i] += 500;
  const RequestId b = Submit(&driver_, request);
  driver_.Step();
  EXPECT_FALSE(Runs(b));
  // After the first chunk of 8, 4 equal tokens are left, and after two none.
  driver_.Step();
  EXPECT_FALSE(Runs(b));
  driver_.Step();
  EXPECT_TRUE(Runs(b));
  driver_.Finish();
  EXPECT_EQ(CountCachedTokens(b), 12);
}

TEST_F(PrefixWaitTest, OtherTenantsDoNotWait) {
  Request request = MakeRequest("b", 40, 1);
  request.scope.tenant = "other";
  const RequestId b = Submit(&driver_, request);
  driver_.Step();
  EXPECT_EQ(driver_.CountTokensInPlan(b), 8);
  driver_.Drain();
}

TEST_F(PrefixWaitTest, GoesOnWhenTheOtherIsCancelled) {
  const RequestId b = SubmitB();
  driver_.Step();
  EXPECT_THAT(driver_.Cancel(a_), IsOk());
  driver_.Step();
  EXPECT_EQ(driver_.CountTokensInPlan(b), 8);
  driver_.Finish();
  EXPECT_EQ(CountCachedTokens(b), 8);
}

TEST_F(PrefixWaitTest, GoesOnWhenTheEngineIsLost) {
  const RequestId b = SubmitB();
  driver_.Step();
  driver_.LoseEngine();
  driver_.Finish();
  EXPECT_EQ(CountCachedTokens(b), 38);
}

TEST(LittlePrefixWaitTest, LittleIsNotWorthWaitingFor) {
  SchedulerOptions options = WaitingOptions();
  options.min_prefix_wait_tokens = 41;
  SchedulerDriver driver(SmallLayout(2, 200), options);
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  driver.Step();
  EXPECT_EQ(driver.CountTokensInPlan(b), 8);
  driver.Drain();
}

// Held up for ever by nobody: not by one that gets no tokens, either.
TEST(BoundedPrefixWaitTest, IsBounded) {
  SchedulerOptions options = WaitingOptions();
  options.max_prefix_wait_steps = 2;
  options.long_prefill_token_threshold = 2;
  SchedulerDriver driver(SmallLayout(2, 200), options);
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  EXPECT_EQ(driver.StepUntilRunning(b), 3);
  driver.Finish();
}

// A prompt of 400 tokens takes 50 steps of 8. Sixteen copies are looked at in a
// step, and once each: after that the stranger's turn has come.
TEST(PrefixWaitersTest, AStrangerStartsBehindManyCopies) {
  for (const int32_t num_copies : {15, 16, 40, 100}) {
    SCOPED_TRACE(num_copies);
    SchedulerDriver driver(SmallLayout(2, 2000), WaitingOptions());
    Submit(&driver, MakeRequest("first", 400, 1));
    driver.Step();
    for (int32_t i = 0; i < num_copies; ++i) {
      Submit(&driver, MakeRequest(absl::StrCat("copy", i), 400, 1));
    }
    const RequestId stranger =
        Submit(&driver, MakeRequest("stranger", 6, 1, /*topic=*/1));
    EXPECT_EQ(driver.StepUntilRunning(stranger), num_copies / 16 + 1);
    driver.Finish();
    // Of all copies only what is never taken from the cache is computed: the
    // page with the last token.
    EXPECT_EQ(driver.scheduler().stats().num_computed_tokens,
              uint64_t{400} + 6 + uint64_t{2} * num_copies);
  }
}

// What a look has found holds no longer when the one who computes is gone.
TEST(PrefixWaitersTest, TheNextOneComputesWhenTheFirstIsCancelled) {
  SchedulerDriver driver(SmallLayout(2, 2000), WaitingOptions());
  const RequestId first = Submit(&driver, MakeRequest("first", 400, 1));
  driver.Step();
  const RequestId second = Submit(&driver, MakeRequest("second", 400, 1));
  const RequestId third = Submit(&driver, MakeRequest("third", 400, 1));
  for (int32_t i = 0; i < 5; ++i) driver.Step();
  ASSERT_EQ(driver.SlotOf(second), kNoSequenceSlot);
  ASSERT_TRUE(driver.Cancel(first).ok());
  driver.Step();
  EXPECT_NE(driver.SlotOf(second), kNoSequenceSlot);
  EXPECT_EQ(driver.SlotOf(third), kNoSequenceSlot);
  driver.Finish();
  EXPECT_EQ(driver.served(third).finish->num_cached_tokens, 398);
}

// Every tenant runs one request and has another one waiting.
TEST(PrefixWaitersTest, ATenantWithRoomStartsBehindManyThatAreFull) {
  constexpr int32_t kNumTenants = 300;
  SchedulerOptions options = WaitingOptions();
  options.max_num_seqs = 400;
  options.max_num_batched_tokens = 4000;
  for (int32_t i = 0; i < kNumTenants; ++i) {
    options.tenants[absl::StrCat("t", i)].max_blocks = 12;
  }
  SchedulerDriver driver(SmallLayout(2, 5000), options);
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < kNumTenants; ++i) {
      Request request =
          MakeRequest(absl::StrCat("r", round, "of", i), 8, 12, 1 + i);
      request.scope.tenant = absl::StrCat("t", i);
      Submit(&driver, request);
    }
  }
  driver.Step();
  driver.Step();
  ASSERT_EQ(driver.scheduler().num_running(), kNumTenants);
  const RequestId other = Submit(&driver, MakeRequest("other", 8, 1, 500));
  EXPECT_EQ(driver.StepUntilRunning(other), 1);
  driver.Finish();
}

TEST(PrefixWaitersTest, AShortPromptStartsBehindHundredsOfLongOnes) {
  SchedulerOptions options = WaitingOptions();
  options.max_long_prefills = 1;
  SchedulerDriver driver(SmallLayout(2, 5000), options);
  for (int32_t i = 0; i < 300; ++i) {
    Submit(&driver, MakeRequest(absl::StrCat("long", i), 12, 1, 1 + i));
  }
  const RequestId last = Submit(&driver, MakeRequest("short", 6, 2, 500));
  EXPECT_EQ(driver.StepUntilRunning(last), 1);
  EXPECT_EQ(driver.scheduler().num_running(), 2);
  driver.Finish();
}

// One state and two who want it, for 60 steps each; the others need none.
TEST(PrefixWaitersTest, WhoNeedsNoScorerStateStartsBesideThoseWhoWaitForOne) {
  SchedulerOptions options = WaitingOptions();
  options.engine.num_scorer_states = 1;
  options.max_num_seqs = 64;
  SchedulerDriver driver(SmallLayout(4, 2000), options);
  for (int32_t i = 0; i < 20; ++i) {
    Request request = MakeRequest(absl::StrCat("h2o", i), 40, 60, 1 + i);
    request.eviction = Recency(8);
    request.eviction.policy.scorer.kind = ScorerKind::kH2o;
    Submit(&driver, request);
  }
  driver.Step();
  ASSERT_EQ(driver.scheduler().num_running(), 1);
  for (int32_t i = 0; i < 40; ++i) {
    const RequestId plain =
        Submit(&driver, MakeRequest(absl::StrCat("plain", i), 6, 2, 50 + i));
    EXPECT_EQ(driver.StepUntilRunning(plain), 1) << i;
  }
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_passes, 0u);
}

// What comes before a compression cannot be computed after it: there is nothing
// to wait for, though the order is in flight.
TEST(ForkTimingTest, WhoPartsBeforeACompressionDoesNotWaitForIt) {
  SchedulerDriver driver(SmallLayout(4, 60), PlainOptions(2));
  Request parent = MakeRequest("a", 20, 8);
  parent.eviction = Recency(4);
  const RequestId a = Submit(&driver, parent);
  ASSERT_TRUE(driver.Issue());
  ASSERT_EQ(driver.plan().evictions.size(), 1u);
  Request fork = MakeRequest("b", 24, 8);
  for (size_t i = 9; i < fork.prompt.size(); ++i) fork.prompt[i] += 500;
  fork.fork_of = "a";
  const RequestId b = Submit(&driver, fork);
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.CountTokensInPlan(b), 20);  // until its own compression
  driver.Finish();
  EXPECT_EQ(driver.served(a).recorded.size(), 1u);
  EXPECT_EQ(driver.served(b).recorded.size(), 1u);
}

}  // namespace
}  // namespace blockmgr
