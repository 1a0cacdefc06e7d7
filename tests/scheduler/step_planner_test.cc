// What a step runs: order, budgets, chunks, prefix hits, admission, preemption.

#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// Submits what must be accepted.
// Tokens that each step of the request's prompt runs.
std::vector<int32_t> PrefillChunks(SchedulerDriver* driver, RequestId id) {
  std::vector<int32_t> chunks;
  const auto num_prompt =
      static_cast<int32_t>(driver->served(id).request.prompt.size());
  while (std::accumulate(chunks.begin(), chunks.end(), 0) < num_prompt &&
         driver->ok()) {
    driver->Step();
    chunks.push_back(driver->TokensInPlan(id));
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
    return std::vector<int32_t>{driver.TokensInPlan(a), driver.TokensInPlan(b),
                                driver.TokensInPlan(c)};
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
  EXPECT_EQ(driver.TokensInPlan(big), 15);
  driver.Finish();
}

TEST(SchedulerPlanTest, HoldsAtMostMaxNumSeqs) {
  SchedulerOptions options = PlainOptions();
  options.max_num_seqs = 2;
  SchedulerDriver driver(SmallLayout(4, 40), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 4, 3));
  Submit(&driver, MakeRequest("b", 4, 9));
  const RequestId c = Submit(&driver, MakeRequest("c", 4, 3));
  driver.RunUntil([&] { return driver.served(a).finish.has_value(); });
  EXPECT_EQ(driver.TokensInPlan(c), 0);
  EXPECT_EQ(driver.scheduler().stats().num_running, 1);
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(c), 4);
  driver.Finish();
}

TEST(SchedulerPlanTest, ChunksLongPrompts) {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 8;
  SchedulerDriver driver(SmallLayout(4, 40), options);
  const RequestId id = Submit(&driver, MakeRequest("a", 18, 2));
  EXPECT_THAT(PrefillChunks(&driver, id), ElementsAre(8, 8, 2));
}

TEST(SchedulerPlanTest, ChunksAreNotAboveTheThreshold) {
  SchedulerOptions options = PlainOptions();
  options.long_prefill_token_threshold = 4;
  SchedulerDriver driver(SmallLayout(4, 40), options);
  const RequestId id = Submit(&driver, MakeRequest("a", 10, 2));
  EXPECT_THAT(PrefillChunks(&driver, id), ElementsAre(4, 4, 2));
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

class PrefixHitTest : public testing::Test {
 protected:
  PrefixHitTest() : driver_(SmallLayout(2, 60), Options()) {
    Submit(&driver_, MakeRequest("first", 16, 1));
    driver_.Drain();
  }

  static SchedulerOptions Options() { return CachingOptions(); }
  int32_t CachedTokens(Request request) {
    const RequestId id = Submit(&driver_, std::move(request));
    driver_.Drain();
    return driver_.served(id).finish->num_cached_tokens;
  }

  SchedulerDriver driver_;
};

TEST_F(PrefixHitTest, LeavesAtLeastOneTokenToCompute) {
  EXPECT_EQ(CachedTokens(MakeRequest("a", 1, 1)), 0);
  EXPECT_EQ(CachedTokens(MakeRequest("b", 2, 1)), 0);
  EXPECT_EQ(CachedTokens(MakeRequest("c", 3, 1)), 2);
  EXPECT_EQ(CachedTokens(MakeRequest("d", 8, 1)), 6);
  EXPECT_EQ(CachedTokens(MakeRequest("e", 9, 1)), 8);
  EXPECT_EQ(CachedTokens(MakeRequest("f", 16, 1)), 14);
  // Here the cache ends.
  EXPECT_EQ(CachedTokens(MakeRequest("g", 40, 1)), 16);
  EXPECT_EQ(CachedTokens(MakeRequest("h", 16, 1, 3)), 0);
}

TEST_F(PrefixHitTest, LeavesTheObservationWindowToCompute) {
  Request request = MakeRequest("a", 12, 4);
  request.eviction = SnapKv(3, 4);
  EXPECT_EQ(CachedTokens(request), 8);  // not 10 of 12 - 3
  request.id = "b";
  request.eviction = SnapKv(4, 4);
  EXPECT_EQ(CachedTokens(request), 8);
  request.id = "c";
  request.eviction = SnapKv(5, 6);
  EXPECT_EQ(CachedTokens(request), 6);
  request.id = "d";
  request.eviction = Recency(4);
  EXPECT_EQ(CachedTokens(request), 10);
}

TEST_F(PrefixHitTest, CompressedPastsAreNotPublished) {
  Request request = MakeRequest("a", 13, 12, 5);
  request.eviction = Recency(4);
  const RequestId id = Submit(&driver_, request);
  driver_.Drain();
  // The prompt was computed before the eviction, the outputs after it.
  Request longer = request;
  longer.id = "b";
  longer.eviction = {};
  const std::vector<int32_t>& outputs = driver_.served(id).outputs;
  longer.prompt.insert(longer.prompt.end(), outputs.begin(), outputs.end());
  EXPECT_EQ(CachedTokens(longer), 12);
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
      EXPECT_EQ(driver.TokensInPlan(id), num_prompt <= room ? 4 : 0);
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
      EXPECT_EQ(driver.TokensInPlan(id) > 0, num_prompt == 8 && step < 2);
    }
    driver.Finish();
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  }
}

TEST(SchedulerAdmissionTest, AloneTheWatermarkDoesNotCount) {
  SchedulerOptions options = PlainOptions();
  options.watermark = 0.9;
  SchedulerDriver driver(SmallLayout(1, 20), options);
  const RequestId id = Submit(&driver, MakeRequest("a", 20, 1));
  driver.Issue();
  EXPECT_EQ(driver.TokensInPlan(id), 20);
  driver.Finish();
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

// Requests that hold blocks and a head that does not fit beside them: it waits
// with nothing in its hands, so that they can end.
void ServeTwo(int32_t num_active, int32_t num_head, int32_t num_usable) {
  SchedulerOptions options = PlainOptions(2);
  options.max_num_batched_tokens = 32;
  options.max_model_len = 1024;
  SchedulerDriver driver(SmallLayout(1, num_usable), options);
  const RequestId active =
      Submit(&driver, MakeRequest("active", num_active, 20));
  driver.RunUntil([&] { return !driver.served(active).outputs.empty(); });
  const RequestId head = Submit(&driver, MakeRequest("head", num_head, 20, 1));
  while (driver.ok() && !driver.served(active).finish.has_value()) {
    driver.Step();
    EXPECT_EQ(driver.SlotOf(head), kNoSequenceSlot);
  }
  driver.Finish();
  EXPECT_EQ(driver.served(head).finish->reason, FinishReason::kLength);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
}

TEST(SchedulerAdmissionTest, vllm_45388_two_shapes) {
  ServeTwo(77, 200, 77 + 179);
  ServeTwo(221, 76, 221 + 35);
}

TEST(SchedulerPreemptionTest, PreemptedRequestsKeepTheirPlace) {
  SchedulerDriver driver(SmallLayout(1, 10), PlainOptions());
  const RequestId a = Submit(&driver, MakeRequest("a", 4, 6));
  const RequestId b = Submit(&driver, MakeRequest("b", 4, 6, 1));
  const RequestId c = Submit(&driver, MakeRequest("c", 3, 6, 2));
  std::vector<RequestId> starts;
  while (driver.ok() && driver.scheduler().has_unfinished_requests()) {
    driver.Step();
    for (const SequenceStart& start : driver.plan().starts) {
      starts.push_back(start.request);
    }
  }
  ASSERT_GE(starts.size(), 4);
  EXPECT_EQ(starts[0], a);
  EXPECT_EQ(starts[1], b);
  EXPECT_EQ(starts[2], b);
  EXPECT_EQ(starts[3], c);
  EXPECT_EQ(driver.served(a).finish->num_preemptions, 0);
  EXPECT_EQ(driver.served(b).finish->num_preemptions, 1);
  driver.CheckQuiescent();
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
  EXPECT_EQ(driver.TokensInPlan(grows), 0);
  EXPECT_EQ(driver.TokensInPlan(other), 1);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.Answer();
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.TokensInPlan(grows), 1);
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
