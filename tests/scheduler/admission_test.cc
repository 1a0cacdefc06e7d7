// Who is admitted: policies, shared prefixes in the making, long prompts.

#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

constexpr AdmissionPolicy kPolicies[] = {AdmissionPolicy::kWatermark,
                                         AdmissionPolicy::kGuaranteed,
                                         AdmissionPolicy::kMaxUtilization};

SchedulerOptions With(AdmissionPolicy admission) {
  SchedulerOptions options = PlainOptions();
  options.admission = admission;
  return options;
}

// Steps until the second of two requests starts, the first one included.
TEST(GuaranteedTest, AdmitsWhatCanBeCompleted) {
  // Peaks of 6 + 6 - 1 and 4 + 6 - 1 blocks.
  for (const int32_t num_usable : {20, 19}) {
    SchedulerDriver driver(SmallLayout(1, num_usable),
                           With(AdmissionPolicy::kGuaranteed));
    const RequestId a = Submit(&driver, MakeRequest("a", 6, 6));
    const RequestId b = Submit(&driver, MakeRequest("b", 4, 6, 1));
    EXPECT_EQ(driver.StepUntilRunning(b), num_usable == 20 ? 1 : 7);
    EXPECT_EQ(driver.served(a).finish.has_value(), num_usable == 19);
    driver.Finish();
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
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
  EXPECT_EQ(driver.StepUntilRunning(b), 2);
  EXPECT_FALSE(driver.served(a).finish.has_value());
  driver.Finish();
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
    EXPECT_EQ(driver.CountTokensInPlan(a), 1);
    EXPECT_EQ(driver.CountTokensInPlan(b),
              admission == AdmissionPolicy::kMaxUtilization ? 4 : 0);
    driver.Finish();
  }
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
    return std::vector<int32_t>{driver.CountTokensInPlan(long1),
                                driver.CountTokensInPlan(long2),
                                driver.CountTokensInPlan(short1)};
  };
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 4));
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 1));
  EXPECT_THAT(tokens(), ElementsAre(4, 0, 1));
  EXPECT_THAT(tokens(), ElementsAre(1, 4, 1));
  driver.Finish();
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
    for (const RequestId id : ids) {
      tokens.push_back(driver->CountTokensInPlan(id));
    }
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
  driver.Finish();
}

TEST_F(EqualProgressTest, WhatIsLeftGoesToTheOldest) {
  SchedulerDriver driver(SmallLayout(4, 30), Options());
  std::vector<RequestId> ids;
  // The last prompt does not fit beside the others.
  SubmitPrompts(&driver, {60, 5, 64}, &ids);
  EXPECT_THAT(Step(&driver, ids), ElementsAre(19, 5, 0));
  driver.Finish();
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
  for (const RequestId id : decodes) EXPECT_EQ(driver.CountTokensInPlan(id), 1);
  // Of 20 tokens two whole pages each, and what is left to the oldest.
  EXPECT_EQ(driver.CountTokensInPlan(a), 12);
  EXPECT_EQ(driver.CountTokensInPlan(b), 8);
  driver.Finish();
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
        driver.Finish();
        EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
      }
    }
  }
}

class PromiseTest : public testing::Test {
 protected:
  static SchedulerOptions Options(int32_t steps_in_flight = 1) {
    SchedulerOptions options = CachingOptions(steps_in_flight);
    options.admission = AdmissionPolicy::kGuaranteed;
    options.min_prefix_wait_tokens = 0;
    options.long_prefill_token_threshold = 4;
    return options;
  }
  static Request Compressed(const std::string& id, int32_t num_prompt,
                            int32_t tokens, int32_t max_tokens) {
    Request request = MakeRequest(id, num_prompt, max_tokens);
    request.eviction = Recency(tokens);
    return request;
  }
  static void Step(SchedulerDriver* driver, int32_t times) {
    for (int32_t i = 0; i < times; ++i) driver->Step();
  }
  static bool Runs(SchedulerDriver* driver, RequestId id) {
    return driver->SlotOf(id) != kNoSequenceSlot;
  }
  // The outcome of a run in one pool: whether the requests ran together, and
  // which of them is compressed once before it ends.
  struct Outcome {
    bool together = false;
    RequestId compressed{0};
  };
  // Pools of `least` to `most` usable blocks. Requests may run together from
  // `num_together` blocks on, and do with the most; all end, and nobody is
  // preempted on the way.
  template <typename Run>
  static void Sweep(int32_t least, int32_t most, int32_t num_together,
                    const SchedulerOptions& options, Run run) {
    for (int32_t num_usable = least; num_usable <= most; ++num_usable) {
      SCOPED_TRACE(testing::Message() << num_usable << " usable");
      SchedulerDriver driver(SmallLayout(1, num_usable), options);
      const Outcome outcome = run(&driver);
      ASSERT_TRUE(driver.ok());
      if (num_usable < num_together) {
        EXPECT_FALSE(outcome.together);
      }
      if (num_usable == most) {
        EXPECT_TRUE(outcome.together);
      }
      ExpectKept(&driver);
      EXPECT_EQ(driver.served(outcome.compressed).recorded.size(), 1u);
    }
  }
  // All end, and nobody is preempted on the way.
  static void ExpectKept(SchedulerDriver* driver) {
    driver->Finish();
    EXPECT_EQ(driver->scheduler().stats().num_preemptions, 0u);
  }
};

// "a" holds 13 blocks, compresses 12 into 6, and "b" keeps 8 of the 12: only 4
// are its own, 2 more are taken, 15 in all. "b" has 2 of its own, "c" takes 5.
TEST_F(PromiseTest, WhoBeginsToShareIsNotCopiedForNothing) {
  for (const bool c_is_first : {false, true}) {
    SCOPED_TRACE(c_is_first);
    Sweep(16, 39, 15 + 2 + 5, Options(), [c_is_first](SchedulerDriver* driver) {
      const RequestId a = Submit(driver, Compressed("a", 13, 6, 2));
      Step(driver, 2);
      const Request other = MakeRequest("c", 4, 2, 1);
      RequestId c{0};
      if (c_is_first) c = Submit(driver, other);
      const RequestId b = Submit(driver, MakeRequest("b", 9, 2));
      if (!c_is_first) c = Submit(driver, other);
      driver->Step();
      return Outcome{Runs(driver, b) && Runs(driver, c), a};
    });
  }
}

// The same with 17 blocks, of which 16 become 15 while "b" keeps 8 of them: 7
// more are taken. "c" comes when they share already.
TEST_F(PromiseTest, WhoSharesAlreadyIsNotCopiedForNothing) {
  Sweep(25, 49, 24 + 3 + 5, Options(), [](SchedulerDriver* driver) {
    const RequestId a = Submit(driver, Compressed("a", 17, 15, 2));
    Step(driver, 2);
    const RequestId b = Submit(driver, MakeRequest("b", 9, 4));
    driver->Step();
    const RequestId c = Submit(driver, MakeRequest("c", 4, 2, 1));
    driver->Step();
    return Outcome{Runs(driver, b) && Runs(driver, c), a};
  });
}

// "b" finds 12 of its 18 blocks in use by "a", and compresses 17 into 10 a step
// later, when "a" has 29: 5 are its own, 5 more are taken.
TEST_F(PromiseTest, WhoIsCompressedSavesNothingByBlocksInUse) {
  Sweep(31, 59, 29 + 6 + 5, Options(), [](SchedulerDriver* driver) {
    const RequestId a = Submit(driver, MakeRequest("a", 12, 20));
    driver->RunUntilOutputs(a, 16);
    const RequestId b = Submit(driver, Compressed("b", 18, 10, 3));
    driver->Step();
    const bool together = Runs(driver, b);
    driver->Drain();
    EXPECT_GE(driver->served(b).finish->num_cached_tokens, 12);
    return Outcome{together, b};
  });
}

// An order in flight frees nothing that others use. "a" has 17 blocks and keeps
// 2 of 16, 8 of which "b" shares; in the end they have 2 + 26, 8 + 28 and 28.
TEST_F(PromiseTest, WhatOthersUseIsNotComing) {
  Sweep(72, 109, 28 + 36 + 28, Options(2), [](SchedulerDriver* driver) {
    const RequestId a = Submit(driver, Compressed("a", 17, 2, 26));
    Step(driver, 2);
    const RequestId b = Submit(driver, MakeRequest("b", 9, 28));
    Step(driver, 2);
    EXPECT_TRUE(Runs(driver, b));
    EXPECT_TRUE(driver->Issue());
    EXPECT_EQ(driver->plan().evictions.size(), 1u);
    const RequestId c = Submit(driver, MakeRequest("c", 4, 25, 1));
    EXPECT_TRUE(driver->Issue());
    return Outcome{Runs(driver, c), a};
  });
}

// The same of an order in the step that admits "b": of its 17 blocks 16 are in
// use by "a".
TEST_F(PromiseTest, WhatTheAdmittedShareIsNotComing) {
  Sweep(72, 129, 42 + 28 + 28, Options(2), [](SchedulerDriver* driver) {
    Submit(driver, MakeRequest("a", 16, 27));
    Step(driver, 4);
    const RequestId b = Submit(driver, Compressed("b", 18, 2, 26));
    EXPECT_TRUE(driver->Issue());
    EXPECT_EQ(driver->plan().evictions.size(), 1u);
    const RequestId c = Submit(driver, MakeRequest("c", 4, 25, 1));
    EXPECT_TRUE(driver->Issue());
    return Outcome{Runs(driver, c), b};
  });
}

// Blocks of a request that has ended, found while a step in flight may still
// touch them: "b" takes 8 of them and is to have 16, "d" 21.
TEST_F(PromiseTest, BlocksThatAreStillComingAreNotForNothing) {
  constexpr int32_t kTogether = 16 + 21;
  for (int32_t num_usable = 29; num_usable < 40; ++num_usable) {
    SCOPED_TRACE(testing::Message() << num_usable << " usable");
    SchedulerOptions options = Options(2);
    options.long_prefill_token_threshold = 0;
    SchedulerDriver driver(SmallLayout(1, num_usable), options);
    const RequestId a = Submit(&driver, MakeRequest("a", 8, 1));
    Submit(&driver, MakeRequest("d", 2, 20, 1));
    ASSERT_TRUE(driver.Issue());
    ASSERT_TRUE(driver.Issue());
    driver.Answer();
    ASSERT_TRUE(driver.served(a).finish.has_value());
    EXPECT_EQ(driver.scheduler().stats().blocks.fenced_blocks, 0);
    const RequestId b = Submit(&driver, MakeRequest("b", 9, 8));
    ASSERT_TRUE(driver.Issue());
    EXPECT_EQ(Runs(&driver, b), num_usable >= kTogether);
    ExpectKept(&driver);
    EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 8);
  }
}

// Sharers in step with one another: where blocks are short, the second is not
// copied next to the first, but a step later, when what they shared is its own.
TEST_F(PromiseTest, WhoAreCompressedAtOnceTakeTurns) {
  for (const int32_t steps_in_flight : {1, 2, 4}) {
    for (const int32_t num_forks : {1, 2, 3}) {
      int32_t num_together = 0;
      for (int32_t num_usable = 30; num_usable < 110; ++num_usable) {
        SCOPED_TRACE(testing::Message()
                     << num_usable << " usable, " << num_forks << " forks, "
                     << steps_in_flight << " steps in flight");
        SchedulerOptions options = Options(steps_in_flight);
        options.long_prefill_token_threshold = 0;
        SchedulerDriver driver(SmallLayout(1, num_usable), options);
        Request request = Compressed("a", 3, 12, 24);
        request.eviction.mode = EvictionMode::kDecode;
        request.eviction.compress_every = 2;
        const RequestId a = Submit(&driver, request);
        driver.RunUntilOutputs(a, 11);
        std::vector<RequestId> forks;
        for (int32_t i = 0; i < num_forks; ++i) {
          Request fork = MakeRequest(absl::StrCat("fork", i), 3, 6);
          fork.fork_of = "a";
          const auto& outputs = driver.served(a).outputs;
          fork.prompt.insert(fork.prompt.end(), outputs.begin(), outputs.end());
          forks.push_back(Submit(&driver, fork));
        }
        // The last to come would be the first to go.
        const RequestId z = Submit(&driver, MakeRequest("z", 4, 9, 1));
        driver.Step();
        ASSERT_TRUE(driver.ok());
        num_together += Runs(&driver, forks.back()) && Runs(&driver, z) ? 1 : 0;
        ExpectKept(&driver);
        for (const RequestId fork : forks) {
          EXPECT_GE(driver.served(fork).recorded.size(), 1u);
        }
      }
      EXPECT_GT(num_together, 10) << num_forks;
    }
  }
}

// "a" has compressed its past, and computed a page behind it that "b" finds in
// the cache, after pages that nobody has any more: "a" leaves that page when it
// is compressed again, and gives back one block less.
TEST_F(PromiseTest, WhatIsFoundBehindAnothersRegionIsShared) {
  for (int32_t num_blocks = 15; num_blocks < 40; ++num_blocks) {
    for (const int32_t max_tokens : {4, 8, 12}) {
      SCOPED_TRACE(testing::Message() << num_blocks << " " << max_tokens);
      SchedulerOptions options = Options();
      options.long_prefill_token_threshold = 0;
      options.policy = SchedulingPolicy::kPriority;
      SchedulerDriver driver(SmallLayout(1, num_blocks), options,
                             {.keeps_all = true});
      Request a = MakeRequest("a", 8, 24);
      a.eviction = Recency(4, EvictionMode::kDecode, 4);
      const absl::StatusOr<RequestId> first = driver.Submit(a);
      if (!first.ok()) continue;  // does not fit
      driver.RunUntil([&] { return !driver.served(*first).outputs.empty(); });
      Request b = MakeRequest("b", 9, max_tokens);
      b.priority = -1;
      if (!driver.Submit(b).ok()) continue;
      ExpectKept(&driver);
    }
  }
}

}  // namespace
}  // namespace blockmgr
