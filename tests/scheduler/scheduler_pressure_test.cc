// EvictionMode::kPressure: squeezed before anybody is preempted, not before
// blocks are short.

#include <algorithm>
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

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Request PressureRequest(const std::string& id, int32_t num_prompt,
                        int32_t max_tokens, int32_t keep, int32_t topic) {
  Request request = MakeRequest(id.c_str(), num_prompt, max_tokens, topic);
  request.eviction = Recency(keep);
  request.eviction.mode = EvictionMode::kPressure;
  return request;
}

class PressureTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.max_steps_in_flight = GetParam();
    options.enable_prefix_caching = false;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, PressureTest,
                         testing::Values(1, 2, 4));

// Four requests that grow to 25 blocks each in a pool of 60: without eviction
// some are preempted, squeezed ones are not.
TEST_P(PressureTest, SqueezesInsteadOfPreempting) {
  for (const bool squeezed : {false, true}) {
    SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 4; ++i) {
      Request request = PressureRequest(std::to_string(i), 20, 80, 8, 1 + i);
      if (!squeezed) request.eviction = RequestEviction();
      ASSERT_OK_AND_ASSIGN(const RequestId id, driver.Submit(request));
      ids.push_back(id);
    }
    driver.Drain();
    driver.CheckQuiescent();
    const SchedulerStats stats = driver.scheduler().stats();
    for (const RequestId id : ids) {
      EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
    }
    if (squeezed) {
      EXPECT_EQ(stats.num_preemptions, 0u);
      EXPECT_GT(stats.num_squeezes, 0u);
      EXPECT_EQ(stats.num_evictions, stats.num_squeezes);
    } else {
      EXPECT_GT(stats.num_preemptions, 0u);
      EXPECT_EQ(stats.num_squeezes, 0u);
    }
  }
}

TEST_P(PressureTest, LeavesThemWholeWhileThereAreBlocks) {
  SchedulerDriver driver(SmallLayout(4, 400, 2, 2), Options());
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_THAT(driver.Submit(PressureRequest(std::to_string(i), 20, 80, 8, i)),
                IsOk());
  }
  driver.Drain();
  EXPECT_EQ(driver.scheduler().stats().num_squeezes, 0u);
  driver.CheckQuiescent();
}

TEST_P(PressureTest, MakesRoomForThoseWhoKeepEverything) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  ASSERT_OK_AND_ASSIGN(const RequestId squeezed,
                       driver.Submit(PressureRequest("a", 80, 100, 8, 1)));
  ASSERT_OK_AND_ASSIGN(const RequestId whole,
                       driver.Submit(MakeRequest("b", 40, 100, 2)));
  driver.Drain();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0u);
  EXPECT_THAT(driver.served(squeezed).recorded, Not(IsEmpty()));
  EXPECT_THAT(driver.served(whole).recorded, IsEmpty());
  driver.CheckQuiescent();
}

TEST_P(PressureTest, IsRecordedAndReplayed) {
  SchedulerDriver driver(SmallLayout(4, 41, 2, 2), Options());
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const RequestId id,
        driver.Submit(PressureRequest(std::to_string(i), 20, 130, 8, 1 + i)));
    ids.push_back(id);
  }
  driver.RunUntil([&] { return driver.served(ids[0]).recorded.size() >= 2; });
  const std::vector<CanaryEviction> before = driver.served(ids[0]).recorded;
  ASSERT_THAT(before, SizeIs(2));
  driver.LoseEngine();
  driver.Drain();
  const std::vector<CanaryEviction>& after = driver.served(ids[0]).recorded;
  ASSERT_GE(after.size(), 2u);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
  driver.CheckQuiescent();
}

TEST_P(PressureTest, AnEngineThatRefusesIsNotAskedAgain) {
  SchedulerDriver driver(SmallLayout(4, 41, 2, 2), Options(),
                         {.refuse_one_in = 1});
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const RequestId id,
        driver.Submit(PressureRequest(std::to_string(i), 30, 90, 8, 1 + i)));
    ids.push_back(id);
  }
  driver.Drain();
  for (const RequestId id : ids) {
    EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kLength);
    EXPECT_LE(driver.served(id).evictions.size(), 1u);
  }
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
  driver.CheckQuiescent();
}

// A squeeze that would free less than an eighth is not worth reading the rest.
TEST(PressureGainTest, IsNotSpentOnTrifles) {
  SchedulerOptions options = PlainOptions();
  options.enable_prefix_caching = false;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  for (int32_t i = 0; i < 4; ++i) {
    Request request = PressureRequest(std::to_string(i), 20, 80, 0, 1 + i);
    request.eviction.target = EvictionTarget();
    request.eviction.target.ratio = *KeepRatio::Parse("0.95");
    EXPECT_THAT(driver.Submit(request), IsOk());
  }
  driver.Drain();
  EXPECT_EQ(driver.scheduler().stats().num_squeezes, 0u);
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
  driver.CheckQuiescent();
}

TEST(PressureSubmitTest, PromisesNothing) {
  SchedulerDriver driver(SmallLayout(4, 10, 2, 2), PlainOptions());
  // Ten blocks hold forty positions; the last output takes none.
  EXPECT_THAT(driver.Submit(PressureRequest("a", 30, 11, 4, 1)), IsOk());
  EXPECT_THAT(driver.Submit(PressureRequest("b", 30, 12, 4, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  Request request = PressureRequest("c", 20, 4, 4, 1);
  request.eviction.share_prefix = true;
  EXPECT_THAT(driver.Submit(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a mode that compresses the "
                                 "prompt, got pressure")));
  driver.Drain();
}

}  // namespace
}  // namespace blockmgr
