// Who is served first: policies, aging, bypasses, tenants.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs everything; ids of the requests in the order in which they started.
std::vector<std::string> Starts(SchedulerDriver* driver) {
  std::vector<std::string> starts;
  while (driver->ok() && driver->scheduler().has_unfinished_requests()) {
    driver->Step();
    for (const SequenceStart& start : driver->plan().starts) {
      starts.push_back(driver->served(start.request).request.id);
    }
  }
  driver->CheckQuiescent();
  return starts;
}

// One at a time, so that starts are in order of service.
SchedulerOptions OneAtATime(SchedulingPolicy policy) {
  SchedulerOptions options = PlainOptions();
  options.policy = policy;
  options.max_num_seqs = 1;
  return options;
}

TEST(PriorityTest, LowerIsFirstThenArrival) {
  SchedulerDriver driver(SmallLayout(4, 40),
                         OneAtATime(SchedulingPolicy::kPriority));
  const std::vector<int32_t> priorities = {3, -1, 3, 0, -1};
  for (size_t i = 0; i < priorities.size(); ++i) {
    Request request = MakeRequest(absl::StrCat(i), 4, 2);
    request.priority = priorities[i];
    Submit(&driver, std::move(request));
  }
  EXPECT_THAT(Starts(&driver), ElementsAre("1", "4", "3", "0", "2"));
}

TEST(PriorityTest, DoesNotMatterUnderFcfs) {
  SchedulerDriver driver(SmallLayout(4, 40),
                         OneAtATime(SchedulingPolicy::kFcfs));
  for (int32_t i = 0; i < 3; ++i) {
    Request request = MakeRequest(absl::StrCat(i), 4, 2);
    request.priority = -i;
    Submit(&driver, std::move(request));
  }
  EXPECT_THAT(Starts(&driver), ElementsAre("0", "1", "2"));
}

// vLLM #41951: a preempted request that lost its place was passed for ever.
TEST(PriorityTest, vllm_41951_PreemptedRequestsKeepTheirPlaceInTheirClass) {
  SchedulerOptions options = PlainOptions();
  options.policy = SchedulingPolicy::kPriority;
  SchedulerDriver driver(SmallLayout(1, 10), options);
  const auto submit = [&](const char* id, int32_t priority, int32_t topic) {
    Request request = MakeRequest(id, 4, 6, topic);
    request.priority = priority;
    return Submit(&driver, std::move(request));
  };
  const RequestId low = submit("low", 1, 0);
  driver.Step();
  const RequestId high = submit("high", 0, 1);
  submit("late", 1, 2);
  submit("first", 0, 3);
  EXPECT_THAT(Starts(&driver),
              ElementsAre("high", "first", "first", "low", "late", "late"));
  EXPECT_EQ(driver.served(high).finish->num_preemptions, 0);
  EXPECT_EQ(driver.served(low).finish->num_preemptions, 1);
}

class PrefixOrderTest : public testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = OneAtATime(SchedulingPolicy::kPrefix);
    options.enable_prefix_caching = true;
    options.prefix_aging = 1;
    return options;
  }
  PrefixOrderTest() : driver_(SmallLayout(1, 200), Options()) {}

  // A prompt that shares its first tokens with others of the topic.
  Request Make(std::string id, int32_t num_shared, int32_t topic) {
    Request request = MakeRequest(std::move(id), num_shared, 2, topic);
    request.prompt.push_back(50'000 + ++num_made_);
    return request;
  }

  SchedulerDriver driver_;
  int32_t num_made_ = 0;
};

TEST_F(PrefixOrderTest, TheLongestCachedPrefixIsFirst) {
  Submit(&driver_, MakeRequest("cached", 40, 1, 1));
  driver_.Drain();
  Submit(&driver_, Make("none", 30, 2));
  Submit(&driver_, Make("short", 10, 1));
  Submit(&driver_, Make("long", 30, 1));
  Submit(&driver_, Make("medium", 20, 1));
  EXPECT_THAT(Starts(&driver_), ElementsAre("long", "medium", "short", "none"));
}

// What a running request publishes moves those who wait for it.
TEST_F(PrefixOrderTest, FollowsWhatIsPublishedMeanwhile) {
  Submit(&driver_, MakeRequest("first", 40, 2, 1));
  Submit(&driver_, Make("other", 30, 2));
  Submit(&driver_, Make("same", 30, 1));
  EXPECT_THAT(Starts(&driver_), ElementsAre("first", "same", "other"));
}

// ... and what is reclaimed is found out when it is looked at.
TEST_F(PrefixOrderTest, FollowsWhatIsReclaimedMeanwhile) {
  Submit(&driver_, MakeRequest("a", 40, 1, 1));
  Submit(&driver_, MakeRequest("b", 40, 1, 2));
  driver_.Drain();
  const RequestId blocker = Submit(&driver_, MakeRequest("blocker", 1, 8, 3));
  driver_.Step();
  Submit(&driver_, Make("plain", 30, 4));
  Submit(&driver_, Make("hit", 30, 1));
  driver_.scheduler().ResetPrefixCache();
  driver_.RunUntil([&] { return driver_.served(blocker).finish.has_value(); });
  EXPECT_THAT(Starts(&driver_), ElementsAre("plain", "hit"));
}

// A stream of hits passes a request without one only for a while.
TEST_F(PrefixOrderTest, WaitingWinsInTheEnd) {
  Submit(&driver_, MakeRequest("cached", 30, 1, 1));
  driver_.Drain();
  const RequestId old = Submit(&driver_, Make("old", 30, 2));
  std::map<RequestId, int32_t> hits;  // steps by which they are younger
  for (int32_t step = 0; driver_.ok() && driver_.served(old).outputs.empty();
       ++step) {
    ASSERT_LT(step, 200);
    if (driver_.scheduler().stats().num_waiting < 3) {
      hits[Submit(&driver_, Make(absl::StrCat("hit", step), 30, 1))] = step;
    }
    driver_.Step();
  }
  // A prefix of 30 tokens is worth 30 steps, and no more.
  EXPECT_GE(hits.rbegin()->second, 30);
  for (const auto& [id, step] : hits) {
    EXPECT_EQ(!driver_.served(id).outputs.empty(), step < 30) << step;
  }
  driver_.Drain();
  driver_.CheckQuiescent();
}

// One that does not fit is passed as often as allowed, and no more.
class BypassTest : public testing::TestWithParam<int32_t> {};

TEST_P(BypassTest, ABigRequestIsPassedABoundedNumberOfTimes) {
  const int32_t max_bypasses = GetParam();
  SchedulerOptions options = PlainOptions();
  options.max_bypasses = max_bypasses;
  options.max_num_seqs = 16;
  SchedulerDriver driver(SmallLayout(1, 20), options);
  Submit(&driver, MakeRequest("running", 8, 12));
  driver.Step();
  const RequestId big = Submit(&driver, MakeRequest("big", 18, 2));
  int32_t num_passed = 0;
  for (int32_t i = 0; driver.ok() && driver.served(big).outputs.empty(); ++i) {
    ASSERT_LT(i, 200);
    if (driver.scheduler().stats().num_waiting < 3) {
      Submit(&driver, MakeRequest(absl::StrCat("small", i), 1, 2, 1));
    }
    driver.Step();
    for (const SequenceStart& start : driver.plan().starts) {
      if (start.request == big) break;
      ++num_passed;
    }
  }
  EXPECT_EQ(num_passed, max_bypasses);
  EXPECT_EQ(driver.scheduler().stats().num_passes, max_bypasses);
  driver.Drain();
  driver.CheckQuiescent();
}

INSTANTIATE_TEST_SUITE_P(Limits, BypassTest, testing::Values(0, 1, 3, 7));

TEST(BypassTest, SmallRequestsAreNotHeldUpByABigOne) {
  SchedulerOptions options = PlainOptions();
  options.max_bypasses = 4;
  SchedulerDriver driver(SmallLayout(1, 20), options);
  Submit(&driver, MakeRequest("running", 8, 12));
  driver.Step();
  const RequestId big = Submit(&driver, MakeRequest("big", 18, 2));
  const RequestId small = Submit(&driver, MakeRequest("small", 2, 2));
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(big), 0);
  EXPECT_EQ(driver.TokensInPlan(small), 2);
  driver.Drain();
  driver.CheckQuiescent();
}

Request OfTenant(Request request, std::string tenant) {
  request.scope.tenant = std::move(tenant);
  return request;
}

TEST(TenantQuotaTest, RefusalsNameTheQuotaAndChangeNothing) {
  SchedulerOptions options = PlainOptions();
  options.tenants["a"] = {
      .max_blocks = 5, .max_requests = 2, .max_queued_tokens = 10};
  SchedulerDriver driver(SmallLayout(4, 40), options);
  const auto refused = [](const char* quota) {
    return StatusIs(absl::StatusCode::kResourceExhausted,
                    AllOf(HasSubstr("tenant 'a'"), HasSubstr(quota)));
  };
  EXPECT_THAT(driver.Submit(OfTenant(MakeRequest("x", 8, 14), "a")),
              refused("max_blocks"));
  Submit(&driver, OfTenant(MakeRequest("1", 8, 2), "a"));
  EXPECT_THAT(driver.Submit(OfTenant(MakeRequest("x", 3, 2), "a")),
              refused("max_queued_tokens"));
  Submit(&driver, OfTenant(MakeRequest("2", 2, 2), "a"));
  EXPECT_THAT(driver.Submit(OfTenant(MakeRequest("x", 1, 2), "a")),
              refused("max_requests"));
  Submit(&driver, OfTenant(MakeRequest("3", 20, 2), "b"));
  driver.Drain();
  Submit(&driver, OfTenant(MakeRequest("4", 8, 2), "a"));
  driver.Drain();
  driver.CheckQuiescent();
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
  driver_->Drain();
  driver_->CheckQuiescent();
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
  driver_->Drain();
  driver_->CheckQuiescent();
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
  driver_->Drain();
  driver_->CheckQuiescent();
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
      EXPECT_EQ(driver_->TokensInPlan(first), 3);
      EXPECT_EQ(driver_->TokensInPlan(second), num_prompt == 1 ? 1 : 0);
      if (cancels) {
        ASSERT_OK(driver_->Cancel(first));
      } else {
        Finish(first);
      }
      if (num_prompt == 2) {
        driver_->Step();
        EXPECT_EQ(driver_->TokensInPlan(second), 2);
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
  EXPECT_EQ(driver_->TokensInPlan(small), 1);
  driver_->Drain();
  driver_->CheckQuiescent();
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
  EXPECT_EQ(driver.TokensInPlan(a1), 4);
  EXPECT_EQ(driver.TokensInPlan(a2), 0);
  EXPECT_EQ(driver.TokensInPlan(a3), 0);  // behind a2
  EXPECT_EQ(driver.TokensInPlan(b), 4);
  driver.RunUntil([&] { return driver.served(a1).finish.has_value(); });
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(a2), 4);
  EXPECT_EQ(driver.TokensInPlan(a3), 1);
  EXPECT_EQ(driver.scheduler().stats().num_passes, 0);
  driver.Drain();
  driver.CheckQuiescent();
}

class FairShareTest : public testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = OneAtATime(SchedulingPolicy::kFcfs);
    options.fair_share = true;
    options.tenants["heavy"].weight = 3;
    return options;
  }
  FairShareTest() : driver_(SmallLayout(4, 40), Options()) {}

  void SubmitMany(const std::string& tenant, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      Submit(&driver_,
             OfTenant(MakeRequest(absl::StrCat(tenant, ++num_), 6, 3), tenant));
    }
  }
  // How many of the next `count` starts are the tenant's.
  int32_t StartsOf(const std::string& tenant, int32_t count) {
    int32_t starts = 0;
    while (driver_.ok() && count > 0) {
      driver_.Step();
      for (const SequenceStart& start : driver_.plan().starts) {
        --count;
        starts += driver_.served(start.request).request.scope.tenant == tenant;
      }
    }
    return starts;
  }

  SchedulerDriver driver_;
  int32_t num_ = 0;
};

TEST_F(FairShareTest, ALongQueueOfOneTenantDoesNotHoldUpAnother) {
  SubmitMany("a", 20);
  SubmitMany("b", 4);
  EXPECT_EQ(StartsOf("b", 8), 4);
}

TEST_F(FairShareTest, SharesFollowWeights) {
  SubmitMany("a", 24);
  SubmitMany("heavy", 24);
  EXPECT_EQ(StartsOf("heavy", 24), 18);
}

// Who was idle for long is not served alone for as long.
TEST_F(FairShareTest, IdleTenantsGainNoCredit) {
  SubmitMany("b", 1);
  SubmitMany("a", 40);
  EXPECT_EQ(StartsOf("a", 21), 20);
  SubmitMany("b", 20);
  EXPECT_EQ(StartsOf("b", 10), 5);
}

TEST_F(FairShareTest, WithinATenantTheOrderIsThePolicys) {
  SubmitMany("a", 3);
  EXPECT_THAT(Starts(&driver_), ElementsAre("a1", "a2", "a3"));
}

}  // namespace
}  // namespace blockmgr
