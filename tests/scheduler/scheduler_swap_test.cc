// Preempted requests whose KV waits in host memory: they go on where they were,
// and output what they do alone. The engine checks every entry that it reads.

#include <algorithm>
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class SwapTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options(int32_t num_host_blocks) {
    SchedulerOptions options = PlainOptions(GetParam());
    options.admission = AdmissionPolicy::kMaxUtilization;
    options.engine.num_host_blocks = num_host_blocks;
    return options;
  }
  // Steps until somebody has been preempted.
  static void RunUntilPreempted(SchedulerDriver* driver) {
    driver->RunFullUntil(
        [&] { return driver->scheduler().stats().num_preemptions > 0; });
  }
  // The younger of two requests that fit alone, not together, is preempted.
  static RequestId PreemptSecond(SchedulerDriver* driver) {
    Submit(driver, MakeRequest("a", 16, 20));
    const RequestId second = Submit(driver, MakeRequest("b", 16, 20, 1));
    RunUntilPreempted(driver);
    return second;
  }
  // Steps until plan() starts the request.
  static const SequenceStart* RunUntilStarted(SchedulerDriver* driver,
                                              RequestId id) {
    driver->RunFullUntil([&] { return driver->StartInPlan(id) != nullptr; });
    return driver->StartInPlan(id);
  }
  static SchedulerStats Stats(SchedulerDriver& driver) {
    return driver.scheduler().stats();
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SwapTest, testing::Values(1, 2, 4));

// Two requests that fit alone, not together: the younger one leaves.
TEST_P(SwapTest, GoesOnWhereItWas) {
  SchedulerDriver driver(SmallLayout(4, 12, 2, 2), Options(20));
  const RequestId a = Submit(&driver, MakeRequest("a", 16, 20));
  const RequestId b = Submit(&driver, MakeRequest("b", 16, 20, 1));
  RunUntilPreempted(&driver);
  ASSERT_THAT(driver.plan().swap_outs, SizeIs(1));
  const SwapOut out = driver.plan().swap_outs[0];
  EXPECT_GE(out.num_tokens, 16);
  EXPECT_EQ(out.num_transfers, (out.num_tokens + 3) / 4);
  EXPECT_THAT(driver.plan().released, testing::ElementsAre(out.slot));
  EXPECT_EQ(Stats(driver).num_swapped, 1);
  EXPECT_EQ(Stats(driver).used_host_blocks, out.num_transfers);
  EXPECT_EQ(Stats(driver).host_blocks, 20);

  const SequenceStart* start = RunUntilStarted(&driver, b);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->swap, out.swap);
  EXPECT_EQ(start->num_cached_tokens, out.num_tokens);
  EXPECT_EQ(start->num_transfers, out.num_transfers);
  EXPECT_THAT(driver.plan().dropped_swaps, IsEmpty());
  EXPECT_EQ(Stats(driver).num_swapped, 0);
  driver.Finish();
  EXPECT_EQ(driver.served(a).finish->num_preemptions, 0);
  EXPECT_EQ(Stats(driver).num_swap_outs, 1u);
  EXPECT_EQ(Stats(driver).num_swap_ins, 1u);
  // What was in flight when it left was not settled, so it is not computed
  // twice.
  EXPECT_EQ(Stats(driver).num_recomputed_tokens, 0u);
}

TEST_P(SwapTest, WithoutRoomItIsComputedAgain) {
  for (const int32_t num_host_blocks : {0, 3}) {
    SchedulerDriver driver(SmallLayout(4, 12), Options(num_host_blocks));
    PreemptSecond(&driver);
    EXPECT_THAT(driver.plan().swap_outs, IsEmpty());
    driver.Finish();
    EXPECT_EQ(Stats(driver).num_swap_outs, 0u);
    EXPECT_GE(Stats(driver).num_recomputed_tokens, 16u);
  }
}

TEST_P(SwapTest, CompressedItStaysCompressed) {
  SchedulerDriver driver(SmallLayout(4, 14, 2, 2), Options(20));
  Request request = MakeRequest("a", 24, 30);
  request.eviction = Recency(8);
  Submit(&driver, request);
  request.id = "b";
  for (int32_t& token : request.prompt) token += 5000;
  const RequestId b = Submit(&driver, request);
  RunUntilPreempted(&driver);
  ASSERT_THAT(driver.plan().swap_outs, SizeIs(1));
  const SwapOut out = driver.plan().swap_outs[0];
  // 20 of 24 tokens are in a region of two blocks or three.
  EXPECT_LE(out.num_transfers, (out.num_tokens - 20 + 3) / 4 + 3);
  const SequenceStart* start = RunUntilStarted(&driver, b);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->swap, out.swap);
  EXPECT_EQ(start->region, kNoRegion);
  const uint64_t num_evictions = Stats(driver).num_evictions;
  driver.Finish();
  EXPECT_EQ(Stats(driver).num_evictions, num_evictions);  // nothing replayed
  EXPECT_EQ(Stats(driver).num_recomputed_tokens, 0u);
}

// Its next compression reads queries that are not swapped: they are computed
// again.
TEST_P(SwapTest, ObservationWindowsAreComputedAsAWhole) {
  int32_t num_swaps = 0;
  for (int32_t num_usable = 8; num_usable < 13; ++num_usable) {
    SchedulerDriver driver(SmallLayout(4, num_usable), Options(20));
    Request request = MakeRequest("a", 20, 40);
    request.eviction = SnapKv(6, 12);
    request.eviction.mode = EvictionMode::kDecode;
    request.eviction.compress_every = 8;
    Submit(&driver, request);
    request.id = "b";
    for (int32_t& token : request.prompt) token += 5000;
    const RequestId b = Submit(&driver, request);
    RunUntilPreempted(&driver);
    // None where it leaves while it is being compressed.
    if (driver.ok() && !driver.plan().swap_outs.empty()) {
      ++num_swaps;
      const SwapOut out = driver.plan().swap_outs[0];
      // It is compressed at the end of its prompt and every 8 tokens after.
      const int32_t next =
          out.num_tokens < 20 ? 20 : 20 + ((out.num_tokens - 20) / 8 + 1) * 8;
      const SequenceStart* start = RunUntilStarted(&driver, b);
      ASSERT_NE(start, nullptr);
      EXPECT_EQ(start->swap, out.swap);
      EXPECT_EQ(start->num_cached_tokens, std::min(out.num_tokens, next - 6));
    }
    driver.Finish();
  }
  EXPECT_GT(num_swaps, 0);
}

TEST_P(SwapTest, ScoresThatTheEngineAccumulatesAreComputedAgain) {
  SchedulerOptions options = Options(20);
  options.engine.num_scorer_states = 4;
  SchedulerDriver driver(SmallLayout(4, 12), options);
  Submit(&driver, MakeRequest("a", 16, 20));
  Request request = MakeRequest("b", 16, 20, 1);
  request.eviction = Recency(12, EvictionMode::kDecode, 16);
  request.eviction.policy.scorer.kind = ScorerKind::kH2o;
  Submit(&driver, request);
  RunUntilPreempted(&driver);
  EXPECT_THAT(driver.plan().swap_outs, IsEmpty());
  driver.Finish();
}

TEST_P(SwapTest, CancelledItGivesUpItsHostBlocks) {
  SchedulerDriver driver(SmallLayout(4, 12), Options(20));
  const RequestId b = PreemptSecond(&driver);
  ASSERT_THAT(driver.plan().swap_outs, SizeIs(1));
  const SwapId swap = driver.plan().swap_outs[0].swap;
  ASSERT_OK(driver.Cancel(b));
  EXPECT_EQ(Stats(driver).num_swapped, 0);
  while (!driver.Issue()) driver.Answer();
  EXPECT_THAT(driver.plan().dropped_swaps, testing::ElementsAre(swap));
  driver.Finish();
}

TEST_P(SwapTest, LostHostBlocksAreComputedAgain) {
  SchedulerDriver driver(SmallLayout(4, 12), Options(20));
  const RequestId b = PreemptSecond(&driver);
  ASSERT_THAT(driver.plan().transfers_out, testing::Not(IsEmpty()));
  const SwapId swap = driver.plan().swap_outs[0].swap;
  const HostBlockId host = driver.plan().transfers_out[1].host;
  while (driver.scheduler().num_steps_in_flight() > 1) driver.Answer();
  driver.engine().LoseHostBlocks({host});
  driver.Answer();
  EXPECT_EQ(Stats(driver).num_lost_host_blocks, 1u);
  EXPECT_EQ(Stats(driver).num_swapped, 0);
  ASSERT_TRUE(driver.Issue());
  EXPECT_THAT(driver.plan().dropped_swaps, testing::ElementsAre(swap));
  const SequenceStart* start = RunUntilStarted(&driver, b);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->swap, kNoSwap);
  EXPECT_EQ(start->num_cached_tokens, 0);
  driver.Finish();
}

TEST_P(SwapTest, AnEngineThatIsLostTakesItAll) {
  SchedulerDriver driver(SmallLayout(4, 12), Options(20));
  PreemptSecond(&driver);
  EXPECT_EQ(Stats(driver).num_swapped, 1);
  driver.LoseEngine();
  EXPECT_EQ(Stats(driver).num_swapped, 0);
  EXPECT_EQ(Stats(driver).used_host_blocks, 0);
  driver.Finish();
  EXPECT_EQ(Stats(driver).num_swap_ins, 0u);
}

TEST_P(SwapTest, WhatTheCacheStillHasIsSharedNotCopied) {
  SchedulerOptions options = Options(40);
  options.enable_prefix_caching = true;
  SchedulerDriver driver(SmallLayout(4, 12), options);
  // Four blocks in common.
  Submit(&driver, MakeRequest("a", 17, 24));
  driver.Step();
  Request request = MakeRequest("b", 17, 24);
  request.prompt.back() = 7000;
  const RequestId b = Submit(&driver, request);
  RunUntilPreempted(&driver);
  ASSERT_THAT(driver.plan().swap_outs, SizeIs(1));
  const SwapOut out = driver.plan().swap_outs[0];
  EXPECT_EQ(out.num_transfers, (out.num_tokens + 3) / 4);
  const SequenceStart* start = RunUntilStarted(&driver, b);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->swap, out.swap);
  EXPECT_EQ(start->num_cached_tokens, out.num_tokens);
  EXPECT_GE(start->num_transfers, 1);
  EXPECT_LE(start->num_transfers, out.num_transfers - 4);
  driver.Finish();
}

TEST_P(SwapTest, RefusesHostBlocksThatTheEngineDoesNotHave) {
  for (const int32_t num_host_blocks : {0, 3}) {
    SchedulerDriver driver(SmallLayout(4, 12), Options(num_host_blocks));
    Submit(&driver, MakeRequest("a", 16, 20));
    ASSERT_TRUE(driver.Issue());
    const WrongAnswer wrong = {
        num_host_blocks == 0 ? "lost_host_blocks: expected none"
                             : "lost_host_blocks[1]",
        [](StepResult* result) {
          result->lost_host_blocks = {HostBlockId{2}, HostBlockId{3}};
        }};
    driver.AnswerWith([&](StepResult* result) {
      ExpectRefused({wrong}, *result, &driver.scheduler());
    });
    driver.Drain();
  }
}

}  // namespace
}  // namespace blockmgr
