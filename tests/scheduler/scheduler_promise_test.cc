// What is promised to the end, where blocks are shared and compressions copy
// what is kept of them: by guaranteed admission nobody is preempted, and who
// starts early in too small a pool would have to be. Pages are of one token, so
// that blocks can be counted by hand.

#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

class PromiseTest : public testing::Test {
 protected:
  static SchedulerOptions Options(int32_t steps_in_flight = 1) {
    SchedulerOptions options = PlainOptions();
    options.admission = AdmissionPolicy::kGuaranteed;
    options.enable_prefix_caching = true;
    options.min_prefix_wait_tokens = 0;
    options.long_prefill_token_threshold = 4;
    options.max_steps_in_flight = steps_in_flight;
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
  // All end, and nobody is preempted on the way.
  static void ExpectKept(SchedulerDriver* driver) {
    driver->Drain();
    EXPECT_EQ(driver->scheduler().stats().num_preemptions, 0u);
    driver->CheckQuiescent();
  }
};

// "a" holds 13 blocks, compresses 12 into 6, and "b" keeps 8 of the 12: only 4
// are its own, 2 more are taken, 15 in all. "b" has 2 of its own, "c" takes 5.
TEST_F(PromiseTest, WhoBeginsToShareIsNotCopiedForNothing) {
  constexpr int32_t kTogether = 15 + 2 + 5;
  for (const bool c_is_first : {false, true}) {
    for (int32_t num_usable = 16; num_usable < 40; ++num_usable) {
      SCOPED_TRACE(testing::Message()
                   << num_usable << " usable, c first " << c_is_first);
      SchedulerDriver driver(SmallLayout(1, num_usable), Options());
      const RequestId a = Submit(&driver, Compressed("a", 13, 6, 2));
      Step(&driver, 2);
      const Request other = MakeRequest("c", 4, 2, 1);
      RequestId c{0};
      if (c_is_first) c = Submit(&driver, other);
      const RequestId b = Submit(&driver, MakeRequest("b", 9, 2));
      if (!c_is_first) c = Submit(&driver, other);
      driver.Step();
      ASSERT_TRUE(driver.ok());
      const bool together = Runs(&driver, b) && Runs(&driver, c);
      if (num_usable < kTogether) {
        EXPECT_FALSE(together);
      }
      if (num_usable == 39) {
        EXPECT_TRUE(together);
      }
      ExpectKept(&driver);
      EXPECT_EQ(driver.served(a).recorded.size(), 1u);
    }
  }
}

// The same with 17 blocks, of which 16 become 15 while "b" keeps 8 of them: 7
// more are taken. "c" comes when they share already.
TEST_F(PromiseTest, WhoSharesAlreadyIsNotCopiedForNothing) {
  constexpr int32_t kTogether = 24 + 3 + 5;
  for (int32_t num_usable = 25; num_usable < 50; ++num_usable) {
    SCOPED_TRACE(testing::Message() << num_usable << " usable");
    SchedulerDriver driver(SmallLayout(1, num_usable), Options());
    const RequestId a = Submit(&driver, Compressed("a", 17, 15, 2));
    Step(&driver, 2);
    const RequestId b = Submit(&driver, MakeRequest("b", 9, 4));
    driver.Step();
    const RequestId c = Submit(&driver, MakeRequest("c", 4, 2, 1));
    driver.Step();
    ASSERT_TRUE(driver.ok());
    const bool together = Runs(&driver, b) && Runs(&driver, c);
    if (num_usable < kTogether) {
      EXPECT_FALSE(together);
    }
    if (num_usable == 49) {
      EXPECT_TRUE(together);
    }
    ExpectKept(&driver);
    EXPECT_EQ(driver.served(a).recorded.size(), 1u);
  }
}

// "b" finds 12 of its 18 blocks in use by "a", and compresses 17 into 10 a step
// later, when "a" has 29: 5 are its own, 5 more are taken.
TEST_F(PromiseTest, WhoIsCompressedSavesNothingByBlocksInUse) {
  constexpr int32_t kTogether = 29 + 6 + 5;
  for (int32_t num_usable = 31; num_usable < 60; ++num_usable) {
    SCOPED_TRACE(testing::Message() << num_usable << " usable");
    SchedulerDriver driver(SmallLayout(1, num_usable), Options());
    const RequestId a = Submit(&driver, MakeRequest("a", 12, 20));
    driver.RunUntil([&] { return driver.served(a).outputs.size() == 16; });
    const RequestId b = Submit(&driver, Compressed("b", 18, 10, 3));
    driver.Step();
    ASSERT_TRUE(driver.ok());
    if (num_usable < kTogether) {
      EXPECT_FALSE(Runs(&driver, b));
    }
    if (num_usable == 59) {
      EXPECT_TRUE(Runs(&driver, b));
    }
    ExpectKept(&driver);
    EXPECT_EQ(driver.served(b).recorded.size(), 1u);
    EXPECT_GE(driver.served(b).finish->num_cached_tokens, 12);
  }
}

// An order in flight frees nothing that others use. "a" has 17 blocks and keeps
// 2 of 16, 8 of which "b" shares; in the end they have 2 + 26, 8 + 28 and 28.
TEST_F(PromiseTest, WhatOthersUseIsNotComing) {
  constexpr int32_t kTogether = 28 + 36 + 28;
  for (int32_t num_usable = 72; num_usable < 110; ++num_usable) {
    SCOPED_TRACE(testing::Message() << num_usable << " usable");
    SchedulerDriver driver(SmallLayout(1, num_usable), Options(2));
    const RequestId a = Submit(&driver, Compressed("a", 17, 2, 26));
    Step(&driver, 2);
    const RequestId b = Submit(&driver, MakeRequest("b", 9, 28));
    Step(&driver, 2);
    ASSERT_TRUE(Runs(&driver, b));
    ASSERT_TRUE(driver.Issue());
    ASSERT_EQ(driver.plan().evictions.size(), 1u);
    const RequestId c = Submit(&driver, MakeRequest("c", 4, 25, 1));
    ASSERT_TRUE(driver.Issue());
    if (num_usable < kTogether) {
      EXPECT_FALSE(Runs(&driver, c));
    }
    if (num_usable == 109) {
      EXPECT_TRUE(Runs(&driver, c));
    }
    ExpectKept(&driver);
    EXPECT_EQ(driver.served(a).recorded.size(), 1u);
  }
}

// The same of an order in the step that admits "b": of its 17 blocks 16 are in
// use by "a".
TEST_F(PromiseTest, WhatTheAdmittedShareIsNotComing) {
  constexpr int32_t kTogether = 42 + 28 + 28;
  for (int32_t num_usable = 72; num_usable < 130; ++num_usable) {
    SCOPED_TRACE(testing::Message() << num_usable << " usable");
    SchedulerDriver driver(SmallLayout(1, num_usable), Options(2));
    Submit(&driver, MakeRequest("a", 16, 27));
    Step(&driver, 4);
    const RequestId b = Submit(&driver, Compressed("b", 18, 2, 26));
    ASSERT_TRUE(driver.Issue());
    ASSERT_EQ(driver.plan().evictions.size(), 1u);
    const RequestId c = Submit(&driver, MakeRequest("c", 4, 25, 1));
    ASSERT_TRUE(driver.Issue());
    if (num_usable < kTogether) {
      EXPECT_FALSE(Runs(&driver, c));
    }
    if (num_usable == 129) {
      EXPECT_TRUE(Runs(&driver, c));
    }
    ExpectKept(&driver);
    EXPECT_EQ(driver.served(b).recorded.size(), 1u);
  }
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
        driver.RunUntil([&] { return driver.served(a).outputs.size() >= 11; });
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
