// Who is admitted: policies, shared prefixes in the making, long prompts.

#include <string>
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
using ::testing::HasSubstr;

constexpr AdmissionPolicy kPolicies[] = {AdmissionPolicy::kWatermark,
                                         AdmissionPolicy::kGuaranteed,
                                         AdmissionPolicy::kMaxUtilization};

SchedulerOptions With(AdmissionPolicy admission) {
  SchedulerOptions options = PlainOptions();
  options.admission = admission;
  return options;
}

// Steps until the second of two requests starts, the first one included.
int32_t StepsToStart(SchedulerDriver* driver, RequestId id) {
  int32_t steps = 0;
  while (driver->ok() && driver->SlotOf(id) == kNoSequenceSlot) {
    driver->Step();
    ++steps;
  }
  return steps;
}

TEST(GuaranteedTest, AdmitsWhatCanBeCompleted) {
  // Peaks of 6 + 6 - 1 and 4 + 6 - 1 blocks.
  for (const int32_t num_usable : {20, 19}) {
    SchedulerDriver driver(SmallLayout(1, num_usable),
                           With(AdmissionPolicy::kGuaranteed));
    const RequestId a = Submit(&driver, MakeRequest("a", 6, 6));
    const RequestId b = Submit(&driver, MakeRequest("b", 4, 6, 1));
    EXPECT_EQ(StepsToStart(&driver, b), num_usable == 20 ? 1 : 7);
    EXPECT_EQ(driver.served(a).finish.has_value(), num_usable == 19);
    driver.Drain();
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
    driver.CheckQuiescent();
  }
}

// The same requests are all preempted by nobody, or some by some.
TEST(GuaranteedTest, NeverPreemptsWhereOthersDo) {
  for (const AdmissionPolicy admission : kPolicies) {
    SchedulerOptions options = With(admission);
    options.max_steps_in_flight = 2;
    options.enable_prefix_caching = true;
    SchedulerDriver driver(SmallLayout(2, 24), options);
    for (int32_t i = 0; i < 12; ++i) {
      Submit(&driver, MakeRequest(std::string(1, static_cast<char>('a' + i)),
                                  5 + i % 3, 20, i % 4));
    }
    driver.Drain();
    const uint64_t num_preemptions = driver.scheduler().stats().num_preemptions;
    if (admission == AdmissionPolicy::kGuaranteed) {
      EXPECT_EQ(num_preemptions, 0u);
    } else {
      EXPECT_GT(num_preemptions, 0u);
    }
    driver.CheckQuiescent();
  }
}

TEST(GuaranteedTest, CountsARegionInsteadOfWhatItReplaces) {
  SchedulerDriver driver(SmallLayout(1, 25),
                         With(AdmissionPolicy::kGuaranteed));
  Request request = MakeRequest("a", 12, 8);
  request.eviction = Recency(2);
  const RequestId a = Submit(&driver, request);
  // Compressed, a will hold 2 + 1 + 7 blocks; until then it has 12, and the
  // destinations of its copies.
  const RequestId b = Submit(&driver, MakeRequest("b", 10, 5, 1));
  EXPECT_EQ(StepsToStart(&driver, b), 2);
  EXPECT_FALSE(driver.served(a).finish.has_value());
  driver.Drain();
  driver.CheckQuiescent();
}

TEST(MaxUtilizationTest, AdmitsWhenTheNextStepFits) {
  for (const AdmissionPolicy admission : kPolicies) {
    SchedulerOptions options = With(admission);
    options.long_prefill_token_threshold = 4;
    options.watermark = 0.2;
    SchedulerDriver driver(SmallLayout(1, 20), options);
    const RequestId a = Submit(&driver, MakeRequest("a", 4, 10));
    driver.Step();
    const RequestId b = Submit(&driver, MakeRequest("b", 16, 2, 1));
    driver.Step();
    EXPECT_EQ(driver.TokensInPlan(a), 1);
    EXPECT_EQ(driver.TokensInPlan(b),
              admission == AdmissionPolicy::kMaxUtilization ? 4 : 0);
    driver.Drain();
    driver.CheckQuiescent();
  }
}

TEST(AdmissionTest, NeverFitsIsRefusedAtOnce) {
  for (const AdmissionPolicy admission : kPolicies) {
    SchedulerOptions options = With(admission);
    options.watermark = 0.5;
    for (const int32_t page_size : {1, 4}) {
      SchedulerDriver driver(SmallLayout(page_size, 10), options);
      const int32_t usable = 10 * page_size;
      for (const int32_t num_prompt : {1, usable / 2, usable}) {
        // The last output is never an input.
        const int32_t max_tokens = usable - num_prompt + 1;
        EXPECT_THAT(
            driver.Submit(MakeRequest("over", num_prompt, max_tokens + 1)),
            StatusIs(absl::StatusCode::kResourceExhausted,
                     HasSubstr("never fit")));
        Submit(&driver, MakeRequest("fits", num_prompt, max_tokens));
        driver.Drain();
      }
      // What evictions make fit is taken.
      Request request =
          MakeRequest("evicted", usable - page_size, 3 * page_size);
      EXPECT_FALSE(driver.Submit(request).ok());
      request.eviction = Recency(page_size);
      const RequestId id = Submit(&driver, request);
      driver.Drain();
      EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
      driver.CheckQuiescent();
    }
  }
}

class PrefixWaitTest : public testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.enable_prefix_caching = true;
    options.long_prefill_token_threshold = 8;
    options.min_prefix_wait_tokens = 4;
    options.max_prefix_wait_steps = 16;
    return options;
  }
  uint64_t NumComputed(SchedulerDriver* driver) {
    return driver->scheduler().stats().num_computed_tokens;
  }
};

TEST_F(PrefixWaitTest, APrefixInTheMakingIsNotComputedTwice) {
  SchedulerDriver driver(SmallLayout(2, 200), Options());
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  const RequestId c = Submit(&driver, MakeRequest("c", 12, 1, 1));
  driver.Step();
  EXPECT_EQ(driver.SlotOf(b), kNoSequenceSlot);
  EXPECT_EQ(driver.TokensInPlan(c), 8);  // passes it
  driver.Drain();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 38);
  EXPECT_EQ(NumComputed(&driver), 40u + 12u + 2u);
  EXPECT_EQ(driver.scheduler().stats().num_passes, 0u);
  EXPECT_EQ(driver.scheduler().stats().num_prefix_waits, 5u);
  driver.CheckQuiescent();
}

// From where prompts part on there is nothing to wait for.
TEST_F(PrefixWaitTest, WaitsOnlyAsLongAsPromptsAreEqual) {
  SchedulerDriver driver(SmallLayout(2, 200), Options());
  Submit(&driver, MakeRequest("a", 40, 1));
  Request request = MakeRequest("b", 40, 1);
  for (size_t i = 13; i < request.prompt.size(); ++i) request.prompt[i] += 500;
  const RequestId b = Submit(&driver, request);
  driver.Step();
  EXPECT_EQ(driver.SlotOf(b), kNoSequenceSlot);
  // After the first chunk of 8, 4 equal tokens are left, and after two none.
  driver.Step();
  EXPECT_EQ(driver.SlotOf(b), kNoSequenceSlot);
  driver.Step();
  EXPECT_NE(driver.SlotOf(b), kNoSequenceSlot);
  driver.Drain();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 12);
  driver.CheckQuiescent();
}

TEST_F(PrefixWaitTest, LittleIsNotWorthWaitingFor) {
  SchedulerOptions options = Options();
  options.min_prefix_wait_tokens = 41;
  SchedulerDriver driver(SmallLayout(2, 200), options);
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(b), 8);
  driver.Drain();
}

TEST_F(PrefixWaitTest, OtherTenantsDoNotWait) {
  SchedulerDriver driver(SmallLayout(2, 200), Options());
  Submit(&driver, MakeRequest("a", 40, 1));
  Request request = MakeRequest("b", 40, 1);
  request.scope.tenant = "other";
  const RequestId b = Submit(&driver, request);
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(b), 8);
  driver.Drain();
}

TEST_F(PrefixWaitTest, GoesOnWhenTheOtherIsCancelled) {
  SchedulerDriver driver(SmallLayout(2, 200), Options());
  const RequestId a = Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  driver.Step();
  EXPECT_THAT(driver.Cancel(a), IsOk());
  driver.Step();
  EXPECT_EQ(driver.TokensInPlan(b), 8);
  driver.Drain();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 8);
  driver.CheckQuiescent();
}

TEST_F(PrefixWaitTest, GoesOnWhenTheEngineIsLost) {
  SchedulerDriver driver(SmallLayout(2, 200), Options());
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  driver.Step();
  driver.LoseEngine();
  driver.Drain();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 38);
  driver.CheckQuiescent();
}

// Held up for ever by nobody: not by one that gets no tokens, either.
TEST_F(PrefixWaitTest, IsBounded) {
  SchedulerOptions options = Options();
  options.max_prefix_wait_steps = 2;
  options.long_prefill_token_threshold = 2;
  SchedulerDriver driver(SmallLayout(2, 200), options);
  Submit(&driver, MakeRequest("a", 40, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 1));
  EXPECT_EQ(StepsToStart(&driver, b), 3);
  driver.Drain();
  driver.CheckQuiescent();
}

TEST(LongPrefillTest, ShortPromptsPassLongOnes) {
  SchedulerOptions options = PlainOptions();
  options.long_prefill_token_threshold = 4;
  options.max_long_prefills = 1;
  SchedulerDriver driver(SmallLayout(4, 100), options);
  const RequestId long1 = Submit(&driver, MakeRequest("l1", 12, 4));
  const RequestId long2 = Submit(&driver, MakeRequest("l2", 12, 4, 1));
  const RequestId short1 = Submit(&driver, MakeRequest("s1", 4, 4, 2));
  const auto tokens = [&] {
    driver.Step();
    return std::vector<int32_t>{driver.TokensInPlan(long1),
                                driver.TokensInPlan(long2),
                                driver.TokensInPlan(short1)};
  };
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 4));
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 1));
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 1));
  EXPECT_THAT(tokens(), ElementsAre(1, 4, 1));
  driver.Drain();
  driver.CheckQuiescent();
}

TEST(LongPrefillTest, AShortPromptPassesManyLongOnes) {
  SchedulerOptions options = PlainOptions();
  options.long_prefill_token_threshold = 4;
  options.max_long_prefills = 2;
  SchedulerDriver driver(SmallLayout(4, 100), options);
  for (int32_t i = 0; i < 40; ++i) {
    Submit(&driver, MakeRequest("long" + std::to_string(i), 12, 2));
  }
  const RequestId last = Submit(&driver, MakeRequest("short", 4, 2));
  driver.Step();
  EXPECT_EQ(driver.plan().starts.size(), 3u);
  EXPECT_EQ(driver.TokensInPlan(last), 4);
  driver.Drain();
  driver.CheckQuiescent();
}

class EqualProgressTest : public testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.chunk_policy = ChunkPolicy::kEqualProgress;
    options.max_num_batched_tokens = 24;
    return options;
  }
  // Prompts of these lengths, which share nothing, after those in `ids`.
  static void SubmitPrompts(SchedulerDriver* driver,
                            const std::vector<int32_t>& num_prompt,
                            std::vector<RequestId>* ids) {
    for (const int32_t count : num_prompt) {
      const auto topic = static_cast<int32_t>(ids->size());
      ids->push_back(Submit(
          driver, MakeRequest("p" + std::to_string(topic), count, 2, topic)));
    }
  }
  // Takes a step; its tokens of each request.
  static std::vector<int32_t> Step(SchedulerDriver* driver,
                                   const std::vector<RequestId>& ids) {
    driver->Step();
    std::vector<int32_t> tokens;
    tokens.reserve(ids.size());
    for (const RequestId id : ids) tokens.push_back(driver->TokensInPlan(id));
    return tokens;
  }
};

TEST_F(EqualProgressTest, PromptsShareAStepInWholePages) {
  SchedulerDriver driver(SmallLayout(4, 100), Options());
  std::vector<RequestId> ids;
  SubmitPrompts(&driver, {40, 40}, &ids);
  for (int32_t step = 0; step < 3; ++step) {
    EXPECT_THAT(Step(&driver, ids), ElementsAre(12, 12));
  }
  // A third one joins, after the decode of none.
  SubmitPrompts(&driver, {40}, &ids);
  EXPECT_THAT(Step(&driver, ids), ElementsAre(4, 4, 16));
  driver.Drain();
  driver.CheckQuiescent();
}

TEST_F(EqualProgressTest, WhatIsLeftGoesToTheOldest) {
  SchedulerDriver driver(SmallLayout(4, 30), Options());
  std::vector<RequestId> ids;
  // The last prompt does not fit beside the others.
  SubmitPrompts(&driver, {60, 5, 64}, &ids);
  EXPECT_THAT(Step(&driver, ids), ElementsAre(19, 5, 0));
  driver.Drain();
  driver.CheckQuiescent();
}

TEST_F(EqualProgressTest, DecodesComeBeforePrompts) {
  SchedulerDriver driver(SmallLayout(4, 100), Options());
  std::vector<RequestId> decodes;
  for (const char* id : {"d1", "d2", "d3", "d4"}) {
    decodes.push_back(Submit(&driver, MakeRequest(id, 2, 20)));
  }
  driver.Step();
  const RequestId a = Submit(&driver, MakeRequest("a", 40, 2, 1));
  const RequestId b = Submit(&driver, MakeRequest("b", 40, 2, 2));
  driver.Step();
  for (const RequestId id : decodes) EXPECT_EQ(driver.TokensInPlan(id), 1);
  // Of 20 tokens two whole pages each, and what is left to the oldest.
  EXPECT_EQ(driver.TokensInPlan(a), 12);
  EXPECT_EQ(driver.TokensInPlan(b), 8);
  driver.Drain();
  driver.CheckQuiescent();
}

TEST_F(EqualProgressTest, TheObservationWindowIsNotCut) {
  SchedulerOptions options = Options();
  options.max_num_seqs = 4;
  SchedulerDriver driver(SmallLayout(1, 200), options);
  Request request = MakeRequest("a", 30, 2);
  request.eviction = SnapKv(14, 16);
  const RequestId a = Submit(&driver, request);
  request.id = "b";
  const RequestId b = Submit(&driver, request);
  driver.Drain();  // the driver checks windows
  EXPECT_FALSE(driver.served(a).recorded.empty());
  EXPECT_FALSE(driver.served(b).recorded.empty());
  driver.CheckQuiescent();
}

// Numbers from a client that are beyond every request.
TEST(HugeNumbersTest, AreBeyondTheEnd) {
  for (const int32_t huge :
       {INT32_MAX, INT32_MAX - 3, INT32_MAX / 4 * 4 - 28}) {
    for (const EvictionMode mode :
         {EvictionMode::kAfterPrefill, EvictionMode::kEveryChunk,
          EvictionMode::kDecode, EvictionMode::kPressure}) {
      const bool has_interval =
          mode == EvictionMode::kEveryChunk || mode == EvictionMode::kDecode;
      for (const bool protects : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << huge << " " << static_cast<int>(mode));
        SchedulerDriver driver(SmallLayout(4, 100), PlainOptions());
        Request request = MakeRequest("a", 20, 8);
        request.eviction = Recency(8);
        request.eviction.mode = mode;
        if (has_interval) request.eviction.compress_every = huge / 4 * 4;
        if (protects) {
          request.eviction.policy.protect = {.sinks = huge, .recent = huge};
          if (has_interval) request.eviction.compress_every = 4;
        }
        const RequestId id = Submit(&driver, request);
        driver.Drain();
        EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
        driver.CheckQuiescent();
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
