// What a step runs: order, budgets, chunks, prefix hits, admission, preemption.

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// Tokens that each step of the request's prompt runs.
std::vector<int32_t> PrefillChunks(SchedulerDriver* driver, RequestId id) {
  std::vector<int32_t> chunks;
  const auto num_prompt =
      static_cast<int32_t>(driver->served(id).request.prompt.size());
  while (std::accumulate(chunks.begin(), chunks.end(), 0) < num_prompt &&
         driver->ok()) {
    driver->Step();
    chunks.push_back(driver->CountTokensInPlan(id));
  }
  return chunks;
}

TEST(SchedulerPlanTest, ServesInOrderOfArrivalWithinTheTokenBudget) {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 8;
  SchedulerDriver driver(SmallLayout(4, 40), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 4, 5));
  const RequestId b = Submit(&driver, MakeRequest("b", 8, 5));
  const RequestId c = Submit(&driver, MakeRequest("c", 9, 5));
  const auto tokens = [&] {
    driver.Step();
    return std::vector<int32_t>{driver.CountTokensInPlan(a),
                                driver.CountTokensInPlan(b),
                                driver.CountTokensInPlan(c)};
  };
  EXPECT_THAT(tokens(), ElementsAre(4, 4, 0));
  EXPECT_THAT(tokens(), ElementsAre(1, 4, 3));
  EXPECT_THAT(tokens(), ElementsAre(1, 1, 6));
  EXPECT_THAT(tokens(), ElementsAre(1, 1, 1));
  driver.Finish();
}

TEST(SchedulerPlanTest, ABigRequestIsNotOvertaken) {
  SchedulerDriver driver(SmallLayout(1, 20), PlainOptions());
  const RequestId a = Submit(&driver, MakeRequest("a", 8, 4));
  const RequestId big = Submit(&driver, MakeRequest("b", 15, 2));
  const RequestId small = Submit(&driver, MakeRequest("c", 1, 2));
  driver.RunUntil([&] { return driver.served(a).finish.has_value(); });
  EXPECT_TRUE(driver.served(big).outputs.empty());
  EXPECT_TRUE(driver.served(small).outputs.empty());
  driver.Step();
  EXPECT_EQ(driver.CountTokensInPlan(big), 15);
  driver.Finish();
}

TEST(SchedulerPlanTest, ChunksAreNotAboveTheBudgetNorTheThreshold) {
  for (const int32_t threshold : {0, 4}) {
    SchedulerOptions options = PlainOptions();
    options.max_num_batched_tokens = 8;
    options.long_prefill_token_threshold = threshold;
    SchedulerDriver driver(SmallLayout(4, 40), options);
    const RequestId id = Submit(&driver, MakeRequest("a", 18, 2));
    EXPECT_EQ(PrefillChunks(&driver, id),
              threshold == 0 ? std::vector<int32_t>({8, 8, 2})
                             : std::vector<int32_t>({4, 4, 4, 4, 2}));
  }
}

TEST(SchedulerPlanTest, TheLastChunkHoldsTheObservationWindow) {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 8;
  options.max_num_seqs = 1;
  SchedulerDriver driver(SmallLayout(1, 40), options);
  Request request = MakeRequest("a", 18, 2);
  request.eviction = SnapKv(4, 6);
  const RequestId id = Submit(&driver, request);
  EXPECT_THAT(PrefillChunks(&driver, id), ElementsAre(8, 6, 4));
  driver.Drain();
  request.id = "b";
  request.eviction = SnapKv(8, 9);
  const RequestId whole = Submit(&driver, request);
  EXPECT_THAT(PrefillChunks(&driver, whole), ElementsAre(8, 2, 8));
  driver.Finish();
}

// What a step computes is found when that is answered, not before.
TEST(PrefixPublicationTest, OnlyWhatIsAcknowledgedIsFound) {
  SchedulerDriver driver(SmallLayout(2, 60), CachingOptions(3));
  const auto cached_tokens = [&] {
    EXPECT_TRUE(driver.Issue());
    EXPECT_EQ(driver.plan().starts.size(), 1u);
    return driver.plan().starts.back().num_cached_tokens;
  };
  Submit(&driver, MakeRequest("a", 9, 9));
  EXPECT_EQ(cached_tokens(), 0);
  Submit(&driver, MakeRequest("b", 9, 9));
  EXPECT_EQ(cached_tokens(), 0);
  driver.Answer();
  Submit(&driver, MakeRequest("c", 9, 9));
  EXPECT_EQ(cached_tokens(), 8);
  driver.Finish();
}

TEST(PrefixResetTest, TellsWhatWentAndWhatIsInUse) {
  SchedulerDriver driver(SmallLayout(4, 20), CachingOptions());
  const auto expect = [&driver](int32_t num_dropped, int32_t num_in_use) {
    const CacheReset reset = driver.scheduler().ResetPrefixCache();
    EXPECT_EQ(reset.num_dropped, num_dropped);
    EXPECT_EQ(reset.num_in_use, num_in_use);
  };
  expect(0, 0);
  Submit(&driver, MakeRequest("ended", 17, 1));
  driver.Drain();
  const RequestId id = Submit(&driver, MakeRequest("runs", 10, 3, 1));
  driver.Step();
  expect(4, 2);
  expect(0, 2);
  driver.RunUntil([&] { return driver.served(id).finish.has_value(); });
  // Ten prompt and two of three output tokens.
  expect(3, 0);
  EXPECT_EQ(driver.scheduler().stats().blocks.free_blocks, 20);
  driver.CheckQuiescent();
}

TEST(SchedulerAdmissionTest, WaitsUntilTheWholePromptFits) {
  for (const double watermark : {0.0, 0.1}) {
    for (const int32_t num_prompt : {6, 7, 8, 9}) {
      SCOPED_TRACE(testing::Message() << watermark << " " << num_prompt);
      SchedulerOptions options = PlainOptions();
      options.watermark = watermark;
      options.max_num_batched_tokens = 16;
      SchedulerDriver driver(SmallLayout(1, 20), options);
      Submit(&driver, MakeRequest("a", 12, 2));
      const RequestId id = Submit(&driver, MakeRequest("b", num_prompt, 2, 1));
      driver.Issue();
      const int32_t room = watermark > 0.0 ? 6 : 8;
      EXPECT_EQ(driver.CountTokensInPlan(id), num_prompt <= room ? 4 : 0);
      driver.Finish();
    }
  }
}

// A request that runs in chunks has its whole prompt reserved from the step on
// that admits it.
TEST(SchedulerAdmissionTest, CountsWhatAdmittedPromptsWillTake) {
  for (const int32_t num_prompt : {8, 9}) {
    SCOPED_TRACE(num_prompt);
    SchedulerOptions options = PlainOptions();
    options.long_prefill_token_threshold = 4;
    SchedulerDriver driver(SmallLayout(1, 20), options);
    Submit(&driver, MakeRequest("a", 12, 1));
    const RequestId id = Submit(&driver, MakeRequest("b", num_prompt, 1, 1));
    for (int32_t step = 0; step < 3; ++step) {
      driver.Step();
      EXPECT_EQ(driver.CountTokensInPlan(id) > 0, num_prompt == 8 && step < 2);
    }
    driver.Finish();
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  }
}

// With all outputs it has by now it fits only because evictions are replayed.
TEST(SchedulerAdmissionTest, ResumesWhatFitsThanksToItsEvictions) {
  SchedulerDriver driver(SmallLayout(1, 12), PlainOptions());
  Request request = MakeRequest("a", 10, 10);
  request.eviction = Recency(2);
  const RequestId id = Submit(&driver, request);
  driver.RunUntilOutputs(id, 8);
  driver.LoseEngine();
  driver.Finish();
  EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
}

TEST(SchedulerPreemptionTest, NobodyIsAdmittedInAStepThatPreempts) {
  SchedulerOptions options = PlainOptions();
  options.max_num_seqs = 3;
  SchedulerDriver driver(SmallLayout(1, 10), options);
  Submit(&driver, MakeRequest("a", 4, 6));
  Submit(&driver, MakeRequest("b", 4, 6, 1));
  Submit(&driver, MakeRequest("c", 1, 6, 2));
  uint64_t before = 0;
  while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
    driver.Step();
    const uint64_t now = driver.scheduler().stats().num_preemptions;
    if (now > before) {
      EXPECT_TRUE(driver.plan().starts.empty());
    }
    before = now;
  }
  EXPECT_GT(before, 0);
  driver.CheckQuiescent();
}

// Blocks on their way are waited for, nobody is preempted for them; and who
// needs none goes on.
TEST(SchedulerPreemptionTest, ComingBlocksAreWaitedForByThoseWhoNeedThem) {
  SchedulerDriver driver(SmallLayout(4, 4), PlainOptions(3));
  const RequestId ends = Submit(&driver, MakeRequest("a", 2, 1));
  const RequestId grows = Submit(&driver, MakeRequest("b", 3, 4, 1));
  const RequestId other = Submit(&driver, MakeRequest("c", 5, 3, 2));
  ASSERT_TRUE(driver.Issue());  // all prompts
  ASSERT_TRUE(driver.Issue());
  driver.Answer();
  ASSERT_TRUE(driver.served(ends).finish.has_value());
  EXPECT_EQ(driver.scheduler().stats().blocks.fenced_blocks, 1);
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.CountTokensInPlan(grows), 0);
  EXPECT_EQ(driver.CountTokensInPlan(other), 1);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.Answer();
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.CountTokensInPlan(grows), 1);
  driver.Finish();
}

// Younger requests share blocks with the oldest and with one another, which
// none of them gives back alone.
TEST(SchedulerPreemptionTest, TakesWhatVictimsShareAmongThemselves) {
  SchedulerDriver driver(SmallLayout(1, 17), CachingOptions());
  const RequestId a = Submit(&driver, MakeRequest("a", 10, 8));
  driver.Step();
  Submit(&driver, MakeRequest("b", 10, 8));
  const RequestId c = Submit(&driver, MakeRequest("c", 10, 8));
  driver.Step();
  driver.Step();
  EXPECT_EQ(driver.scheduler().stats().blocks.used_blocks, 9 + 3 + 2 + 2);
  EXPECT_THAT(driver.Evict(a, RecencyCommand(8, 9)), IsOk());
  driver.Finish();
  EXPECT_EQ(driver.served(c).finish->num_cached_tokens, 9);
  EXPECT_EQ(driver.served(a).finish->num_preemptions, 0);
}

TEST(SchedulerPlanTest, StepsInFlightAreLimited) {
  for (int32_t limit = 1; limit <= 4; ++limit) {
    SchedulerDriver driver(SmallLayout(4, 8), PlainOptions(limit));
    Submit(&driver, MakeRequest("a", 4, 9));
    int32_t issued = 0;
    while (driver.Issue()) ++issued;
    EXPECT_EQ(issued, limit);
    driver.Drain();
  }
}

TEST(SchedulerPlanTest, WithoutRequestsThereIsNoStep) {
  SchedulerDriver driver(SmallLayout(4, 8), PlainOptions());
  EXPECT_FALSE(driver.Issue());
}

}  // namespace
}  // namespace blockmgr
