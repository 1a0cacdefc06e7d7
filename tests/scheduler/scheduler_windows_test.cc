// Models with sliding windows: what falls out of them is there for others, and
// requests take no more than windows and a chunk. The engine checks every entry
// that it reads.

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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ModelLayout WindowLayout(int32_t num_usable, int32_t window,
                         std::vector<int32_t> group_windows) {
  ModelLayout layout = SmallLayout(4, num_usable, 2, 2);
  layout.window = window;
  layout.group_windows = std::move(group_windows);
  return layout;
}

class WindowsTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.max_steps_in_flight = GetParam();
    options.max_num_batched_tokens = 16;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, WindowsTest, testing::Values(1, 2, 4));

// 200 tokens in 50 blocks of group 0, and 8 of the other: its window of 8
// tokens, chunks of 16, and where they begin within a page. With chunks of 4,
// the least, it is 4.
TEST_P(WindowsTest, LongPromptTakesWindowAndChunk) {
  SchedulerDriver driver(WindowLayout(50 + 7, 0, {8}), Options());
  const RequestId a = Submit(&driver, MakeRequest("a", 190, 11));
  driver.Drain();
  EXPECT_THAT(driver.served(a).outputs, SizeIs(11));
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.CheckQuiescent();
  const auto refused = driver.Submit(MakeRequest("b", 190, 30));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("it needs 59 blocks at its peak (190 prompt and 30 "
                        "output tokens), the pool has 57"));
}

// In a model of windows alone the length does not matter.
TEST_P(WindowsTest, WindowsAloneHoldAnyLength) {
  SchedulerDriver driver(WindowLayout(7, 8, {}), Options());
  const RequestId a = Submit(&driver, MakeRequest("a", 300, 60));
  driver.Drain();
  EXPECT_THAT(driver.served(a).outputs, SizeIs(60));
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.CheckQuiescent();
}

// Many more than would fit with full tables run at once, to their end: what is
// promised to each is its windows.
TEST_P(WindowsTest, GuaranteedAdmissionCountsWindows) {
  SchedulerOptions options = Options();
  options.admission = AdmissionPolicy::kGuaranteed;
  // Each: 15 of group 0, (8 + 16) / 4 + 1 of the others.
  SchedulerDriver driver(WindowLayout(4 * (15 + 7 + 7), 0, {8, 8}), options);
  for (int32_t i = 0; i < 8; ++i) {
    Submit(&driver, MakeRequest("r" + std::to_string(i), 40, 20, i));
  }
  int32_t most = 0;
  driver.RunUntil([&] {
    most = std::max(most, driver.scheduler().stats().num_running);
    return false;
  });
  EXPECT_GE(most, 4);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.CheckQuiescent();
}

// Blocks that several share fall out for none of them alone: what is promised
// does not count on them.
TEST_P(WindowsTest, GuaranteedAdmissionKeepsWordWithSharedWindows) {
  for (const bool forks : {false, true}) {
    SchedulerOptions options = Options();
    options.admission = AdmissionPolicy::kGuaranteed;
    options.enable_prefix_caching = !forks;
    for (int32_t num_usable = 100; num_usable < 180; ++num_usable) {
      SchedulerDriver driver(WindowLayout(num_usable, 0, {32, 32}), options);
      Submit(&driver, MakeRequest("a", 70, 40));
      driver.RunUntil([&] {
        return driver.scheduler().stats().num_running == 1 &&
               driver.TokensInPlan(RequestId{1}) == 1;
      });
      for (int32_t i = 0; i < 3; ++i) {
        Request request = MakeRequest("b" + std::to_string(i), 70, 40);
        if (forks) request.fork_of = "a";
        Submit(&driver, request);
        Submit(&driver, MakeRequest("c" + std::to_string(i), 1, 60, i + 1));
      }
      driver.Drain();
      ASSERT_EQ(driver.scheduler().stats().num_preemptions, 0) << num_usable;
      driver.CheckQuiescent();
    }
  }
}

// A step computes less of a request where windows and a whole chunk would be
// too much; only what cannot be at all is refused.
TEST_P(WindowsTest, ChunksAreAsLargeAsThePoolAllows) {
  // 35 of group 0; of each window 2 + 4 + 1 with chunks of 16, 2 + 1 + 1 with
  // chunks of 4.
  for (const int32_t num_usable : {35 + 4 * 4, 35 + 4 * 7}) {
    SchedulerDriver driver(WindowLayout(num_usable, 0, {8, 8, 8, 8}),
                           Options());
    const RequestId a = Submit(&driver, MakeRequest("a", 120, 21));
    driver.Drain();
    EXPECT_THAT(driver.served(a).outputs, SizeIs(21));
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
    EXPECT_THAT(driver.Submit(MakeRequest("b", 120, 200)),
                StatusIs(absl::StatusCode::kResourceExhausted));
    driver.CheckQuiescent();
  }
}

// What falls out when the steps in flight are answered is waited for; nobody is
// preempted for blocks that are about to come.
TEST_P(WindowsTest, BlocksThatFallOutAreWaitedFor) {
  SchedulerDriver driver(WindowLayout(2 * 25 + 10, 0, {8}), Options());
  Submit(&driver, MakeRequest("a", 90, 10));
  Submit(&driver, MakeRequest("b", 90, 10, 1));
  driver.Drain();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.CheckQuiescent();
}

TEST_P(WindowsTest, StartsNameTheWindowOfTheirPrefix) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(WindowLayout(80, 0, {8, 12}), options);
  Submit(&driver, MakeRequest("a", 40, 2));
  driver.Drain();
  const RequestId b = Submit(&driver, MakeRequest("b", 43, 2));
  ASSERT_TRUE(driver.Issue());
  const StepPlan& plan = driver.plan();
  ASSERT_THAT(plan.starts, SizeIs(1));
  EXPECT_EQ(plan.starts[0].num_cached_tokens, 40);
  EXPECT_THAT(plan.block_offsets, ElementsAre(0, 11));
  EXPECT_THAT(plan.window_offsets, ElementsAre(0, 11, 22));
  for (int32_t page = 0; page < 11; ++page) {
    EXPECT_EQ(plan.window_blocks[page] == kNullBlock, page < 8) << page;
    EXPECT_EQ(plan.window_blocks[11 + page] == kNullBlock, page < 7) << page;
  }
  driver.Drain();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 40);
  driver.CheckQuiescent();
}

// Samples of one prompt: what they share is in every group the same blocks.
TEST_P(WindowsTest, ForksGoOnFromTheirParentsWindows) {
  for (const int32_t num_prompt : {30, 31, 32, 33}) {
    SchedulerDriver driver(WindowLayout(80, 0, {8, 12}), Options());
    Submit(&driver, MakeRequest("a", num_prompt, 9));
    Request fork = MakeRequest("b", num_prompt, 9);
    fork.fork_of = "a";
    const RequestId b = Submit(&driver, fork);
    driver.Drain();
    EXPECT_EQ(driver.scheduler().stats().num_forks, 1) << num_prompt;
    EXPECT_EQ(driver.served(b).finish->num_cached_tokens, num_prompt - 1);
    driver.CheckQuiescent();
  }
}

TEST_P(WindowsTest, SwappedWindowsComeBack) {
  SchedulerOptions options = Options();
  options.admission = AdmissionPolicy::kMaxUtilization;
  options.num_host_blocks = 60;
  SchedulerDriver driver(WindowLayout(40, 0, {8}), options);
  Submit(&driver, MakeRequest("a", 40, 60));
  Submit(&driver, MakeRequest("b", 40, 60, 1));
  driver.Drain();
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0);
  EXPECT_GT(driver.scheduler().stats().num_swap_ins, 0);
  driver.CheckQuiescent();
}

// The regions are of group 0: the windows are as they were.
TEST_P(WindowsTest, CompressedRequestsKeepTheirWindows) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(WindowLayout(120, 0, {8, 12}), options);
  Request request = MakeRequest("a", 60, 30);
  request.eviction = Recency(16);
  request.eviction.share_prefix = true;
  const RequestId a = Submit(&driver, request);
  driver.Drain();
  EXPECT_THAT(driver.served(a).evictions, SizeIs(1));
  request.id = "b";
  const RequestId b = Submit(&driver, request);
  driver.Drain();
  EXPECT_GT(driver.served(b).finish->num_cached_tokens, 0);
  EXPECT_GT(driver.scheduler().stats().num_cached_region_tokens, 0);
  driver.CheckQuiescent();
}

// A command reads no more queries than a step of the request will compute when
// it is replayed: here those are fewer than the options allow.
TEST_P(WindowsTest, CommandsReadNoMoreThanAStepOfTheRequest) {
  SchedulerOptions options = Options();
  options.query_window = 8;
  SchedulerDriver driver(WindowLayout(35 + 4 * 4, 0, {8, 8, 8, 8}), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 120, 21));
  driver.RunUntil([&] { return driver.served(a).outputs.size() == 3; });
  EvictionCommand command;
  command.policy = SnapKv(8, 16).policy;
  command.target = SnapKv(8, 16).target;
  ASSERT_TRUE(driver.Evict(a, command).ok());
  driver.RunUntil([&] { return !driver.served(a).evictions.empty(); });
  ASSERT_THAT(driver.served(a).evictions, SizeIs(1));
  EXPECT_TRUE(driver.served(a).evictions[0].status.ok());
  driver.LoseEngine();
  driver.Drain();
  EXPECT_THAT(driver.served(a).outputs, SizeIs(21));
  driver.CheckQuiescent();
}

TEST_P(WindowsTest, WindowsAloneHaveNothingToEvict) {
  SchedulerDriver driver(WindowLayout(20, 8, {}), Options());
  Request request = MakeRequest("a", 60, 30);
  request.eviction = Recency(16);
  EXPECT_THAT(driver.Submit(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("eviction: expected none for a model whose "
                                 "layers all have a sliding window (8")));
  request.eviction = RequestEviction();
  const RequestId a = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(a).outputs.empty(); });
  EvictionCommand command;
  command.policy = Recency(16).policy;
  command.target = Recency(16).target;
  EXPECT_THAT(driver.Evict(a, command),
              StatusIs(absl::StatusCode::kInvalidArgument));
  driver.Drain();
}

}  // namespace
}  // namespace blockmgr
