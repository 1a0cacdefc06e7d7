// Drafts with an engine whose every slot tells who wrote it (SchedulerDriver):
// forks, losses, preemptions and compressions of requests that speculate.

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

SchedulerOptions Options(int32_t num_speculative_tokens,
                         int32_t max_steps_in_flight) {
  SchedulerOptions options = PlainOptions();
  options.num_speculative_tokens = num_speculative_tokens;
  options.max_steps_in_flight = max_steps_in_flight;
  return options;
}

// The parameter: steps in flight.
class SpeculationDriverTest : public testing::TestWithParam<int32_t> {
 protected:
  static CanaryOptions Drafts(int32_t wrong_draft_one_in = 3) {
    CanaryOptions canary;
    canary.vocabulary = 4;
    canary.max_drafts = 5;
    canary.wrong_draft_one_in = wrong_draft_one_in;
    return canary;
  }
  static void Finish(SchedulerDriver* driver) {
    driver->Drain();
    driver->CheckQuiescent();
    const SchedulerStats stats = driver->scheduler().stats();
    EXPECT_GT(stats.num_accepted_tokens, 0u);
    EXPECT_GT(stats.num_draft_tokens, stats.num_accepted_tokens);
  }
};

// Both go on from what is settled; the drafts in flight are nobody else's.
TEST_P(SpeculationDriverTest, ForksOfASpeculatingParent) {
  SchedulerDriver driver(SmallLayout(4, 60), Options(5, GetParam()), Drafts());
  const RequestId parent = Submit(&driver, MakeRequest("a", 10, 40));
  for (int32_t i = 0; i < 6; ++i) driver.Step();
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(driver.Issue());
    Request fork = MakeRequest("f" + std::to_string(i), 10, 30);
    fork.fork_of = "a";
    const std::vector<int32_t>& outputs = driver.served(parent).outputs;
    fork.prompt.insert(fork.prompt.end(), outputs.begin(), outputs.end() - i);
    Submit(&driver, fork);
    while (driver.ok() && driver.engine().num_queued() > 0) driver.Answer();
  }
  Finish(&driver);
  EXPECT_EQ(driver.scheduler().stats().num_forks, 3u);
}

TEST_P(SpeculationDriverTest, LosesBlocksInAStepWithDrafts) {
  SchedulerDriver driver(SmallLayout(2, 60), Options(5, GetParam()), Drafts());
  const RequestId id = Submit(&driver, MakeRequest("a", 9, 60));
  for (int32_t i = 0; i < 12; ++i) {
    if (!driver.Issue()) continue;
    const SequenceCache& sequence =
        driver.scheduler().manager().sequence(driver.SlotOf(id));
    if (i % 3 == 0) driver.engine().LoseBlocks({sequence.tail.back()});
    if (i % 3 == 1) driver.engine().LoseBlocks({sequence.tail.front()});
    driver.Answer();
  }
  Finish(&driver);
  EXPECT_GT(driver.scheduler().stats().num_cut_requests, 4u);
}

TEST_P(SpeculationDriverTest, IsPreemptedCancelledAndLost) {
  SchedulerDriver driver(SmallLayout(2, 30), Options(5, GetParam()), Drafts());
  for (int32_t i = 0; i < 4; ++i) {
    Submit(&driver, MakeRequest(std::to_string(i), 6, 40, i));
  }
  for (int32_t i = 0; i < 10; ++i) driver.Step();
  ASSERT_TRUE(driver.Issue());
  EXPECT_THAT(driver.Cancel(RequestId{2}), IsOk());
  driver.Answer();
  ASSERT_TRUE(driver.Issue());
  driver.LoseEngine();
  Finish(&driver);
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
}

TEST_P(SpeculationDriverTest, CompressesAtTheSameLengthsAsWithout) {
  std::vector<std::vector<CanaryEviction>> recorded;
  for (const int32_t num_speculative_tokens : {0, 5}) {
    SchedulerDriver driver(SmallLayout(4, 60),
                           Options(num_speculative_tokens, GetParam()),
                           Drafts());
    Request request = MakeRequest("a", 18, 70);
    request.eviction = SnapKv(3, 8);
    request.eviction.mode = EvictionMode::kDecode;
    request.eviction.compress_every = 12;
    const RequestId id = Submit(&driver, request);
    driver.Drain();
    driver.CheckQuiescent();
    recorded.push_back(driver.served(id).recorded);
  }
  EXPECT_EQ(recorded[0].size(), 6u);
  EXPECT_EQ(recorded[1], recorded[0]);
}

TEST_P(SpeculationDriverTest, NeedsFewerSteps) {
  std::vector<uint64_t> num_steps;
  for (const int32_t num_speculative_tokens : {0, 5}) {
    SchedulerDriver driver(SmallLayout(4, 60),
                           Options(num_speculative_tokens, GetParam()),
                           Drafts(20));
    Submit(&driver, MakeRequest("a", 18, 100));
    driver.Drain();
    driver.CheckQuiescent();
    num_steps.push_back(driver.scheduler().stats().num_steps);
  }
  EXPECT_EQ(num_steps[0], 100u);
  EXPECT_LT(num_steps[1], 60u);
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SpeculationDriverTest,
                         testing::Values(1, 2, 4));

}  // namespace
}  // namespace blockmgr
