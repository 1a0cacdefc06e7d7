#include "bench/micro/step_workloads.h"

#include <cstdint>
#include <set>

#include <gtest/gtest.h>

#include "bench/micro/memory_workloads.h"

namespace blockmgr {
namespace {

TEST(ThreadMicrosecondsTest, GoesOnWithWork) {
  const double begin = ThreadMicroseconds();
  volatile uint64_t sum = 0;
  for (uint64_t i = 0; i < 100000; ++i) sum = sum + i;
  EXPECT_GT(ThreadMicroseconds(), begin);
}

TEST(DecodeWorkloadTest, RunsAsManyStepsAsItSays) {
  for (const EvictionMode mode :
       {EvictionMode::kNone, EvictionMode::kAfterPrefill,
        EvictionMode::kEveryChunk, EvictionMode::kDecode,
        EvictionMode::kPressure}) {
    SCOPED_TRACE(static_cast<int>(mode));
    DecodeWorkload workload(
        {.num_running = 20, .eviction = mode, .max_steps = 70});
    for (int32_t i = 0; i < 70; ++i) {
      ASSERT_EQ(workload.steps_left(), 70 - i);
      EXPECT_GT(workload.Step(), 0);
    }
    EXPECT_EQ(workload.steps_left(), 0);
  }
}

TEST(DecodeWorkloadTest, VerifiesDraftsInEveryStep) {
  for (const int32_t num_running : {20, 1536}) {
    DecodeWorkload workload(
        {.num_running = num_running, .num_drafts = 4, .max_steps = 40});
    // Step checks the tokens.
    while (workload.steps_left() > 0) EXPECT_GT(workload.Step(), 0);
  }
}

TEST(DecodeWorkloadTest, WindowGroupsMoveOn) {
  DecodeWorkload workload(
      {.num_running = 20, .max_steps = 200, .num_window_groups = 2});
  while (workload.steps_left() > 0) EXPECT_GT(workload.Step(), 0);
}

TEST(DecodeWorkloadTest, RunsModelsOfAnySize) {
  DecodeWorkload workload(
      {.num_running = 20, .max_steps = 40, .num_layers = 80, .num_heads = 64});
  while (workload.steps_left() > 0) EXPECT_GT(workload.Step(), 0);
}

TEST(DecodeWorkloadTest, MoreRequestsThanAStepHasTokensForPrompts) {
  for (const int32_t num_running : {300, 1536}) {
    DecodeWorkload workload({.num_running = num_running, .max_steps = 20});
    while (workload.steps_left() > 0) EXPECT_GT(workload.Step(), 0);
  }
}

TEST(WaitingWorkloadTest, RequestsComeAndGoAtAnyLengthOfTheQueue) {
  for (const auto policy :
       {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority,
        SchedulingPolicy::kPrefix}) {
    for (const bool fair_share : {false, true}) {
      WaitingWorkload workload(
          {.num_waiting = 50, .policy = policy, .fair_share = fair_share});
      std::set<int32_t> running;
      for (int32_t i = 0; i < 40; ++i) {
        EXPECT_GT(workload.Step(), 0);
        running.insert(workload.num_running());
        workload.Refill();
      }
      EXPECT_GE(*running.begin(), 32);
      EXPECT_LE(*running.rbegin(), 72);
    }
  }
}

// A request is a step's tokens and what they cost: a queue changes neither.
TEST(WaitingWorkloadTest, AsManyRunWithALongQueue) {
  WaitingWorkload few({.num_waiting = 10});
  WaitingWorkload many({.num_waiting = 200});
  int32_t num_few = 0;
  int32_t num_many = 0;
  for (int32_t i = 0; i < 50; ++i) {
    few.Step();
    many.Step();
    num_few += few.num_running();
    num_many += many.num_running();
    few.Refill();
    many.Refill();
  }
  EXPECT_NEAR(num_few, num_many, 0.1 * static_cast<double>(num_few));
}

TEST(StepHarnessTest, AnswersEveryStepAtOnce) {
  StepHarness harness(LlamaLayout(64), {});
  Request request;
  request.prompt.assign(40, 1);
  request.max_tokens = 3;
  harness.Submit(request);
  harness.Submit(request);
  int32_t num_tokens = 0;
  int32_t num_finished = 0;
  while (harness.scheduler().has_unfinished_requests()) {
    harness.Step();
    EXPECT_EQ(harness.scheduler().num_steps_in_flight(), 0);
    num_tokens += static_cast<int32_t>(harness.effects().tokens.size());
    num_finished += static_cast<int32_t>(harness.effects().finished.size());
  }
  EXPECT_EQ(num_tokens, 6);
  EXPECT_EQ(num_finished, 2);
}

}  // namespace
}  // namespace blockmgr
