// Retention: what requests wish for their blocks in the prefix cache, and that
// a wish is never a pin.

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

constexpr int32_t kPrompt = 17;  // four whole pages of 4, and a token
constexpr int32_t kTopic = 1;    // of what is to be kept

class RetentionTest : public testing::Test {
 protected:
  static SchedulerOptions Options() { return CachingOptions(); }
  // Three prompts and a bit.
  RetentionTest() : driver_(SmallLayout(4, 14), Options()) { SetTime(0); }

  void SetTime(int64_t now_ms) { driver_.scheduler().SetTime(now_ms); }
  RequestId Submit(Request request) {
    request.id = absl::StrCat(++num_requests_);
    return blockmgr::Submit(&driver_, std::move(request));
  }
  // Runs a request; its tokens that were cached.
  int32_t Serve(Request request) {
    const RequestId id = Submit(std::move(request));
    driver_.Drain();
    return driver_.served(id).finish->num_cached_tokens;
  }
  int32_t Serve(int32_t topic, std::vector<RetentionWish> retention = {}) {
    Request request = MakeRequest("", kPrompt, 1, topic);
    request.retention = std::move(retention);
    return Serve(std::move(request));
  }
  // Younger ones without wishes, which need the pool several times.
  void ServeOthers() {
    for (int32_t topic = 2; topic < 12; ++topic) EXPECT_EQ(Serve(topic), 0);
  }

  SchedulerDriver driver_;
  int32_t num_requests_ = 0;
};

TEST_F(RetentionTest, WithoutAWishTheOldestGoes) {
  EXPECT_EQ(Serve(kTopic), 0);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 0);
}

TEST_F(RetentionTest, AWishOutlivesYoungerPrefixes) {
  Serve(kTopic, {{.priority = 80}});
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
}

// A later request that shares the prefix may wish for it, too.
TEST_F(RetentionTest, AWishForWhatIsCachedCounts) {
  Serve(kTopic);
  EXPECT_EQ(Serve(kTopic, {{.priority = 80}}), 16);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
}

// A prompt of whole pages computes its last one again, and two at a time all of
// theirs: what the cache has already is what the wish is for.
TEST_F(RetentionTest, AWishForWhatIsComputedAgainCounts) {
  Request request = MakeRequest("", 16, 1, kTopic);
  Serve(request);
  request.retention = {{.priority = 80}};
  EXPECT_EQ(Serve(request), 12);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
  driver_.scheduler().ResetPrefixCache();
  Submit(MakeRequest("", 16, 1, kTopic));
  EXPECT_EQ(Serve(request), 0);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
}

// From Submit on, however late the request runs.
TEST_F(RetentionTest, AWishEndsWithItsDuration) {
  for (const int64_t end_ms : {1499, 1500}) {
    SCOPED_TRACE(end_ms);
    driver_.scheduler().ResetPrefixCache();
    // The scheduler knows no clock: each round has its own thousand years.
    const int64_t begin_ms = end_ms == 1499 ? 0 : 1'000'000;
    SetTime(begin_ms + 500);
    Request request = MakeRequest("", kPrompt, 1, kTopic);
    request.retention = {{.priority = 80, .duration_ms = 1000}};
    Submit(std::move(request));
    SetTime(begin_ms + 900);
    driver_.Drain();
    SetTime(begin_ms + end_ms);
    ServeOthers();
    EXPECT_EQ(Serve(kTopic), end_ms == 1499 ? 16 : 0);
  }
}

TEST_F(RetentionTest, TheLowestPriorityGoesFirst) {
  SchedulerDriver driver(SmallLayout(4, 12), Options());
  const auto serve = [&](int32_t topic, int32_t num_prompt, int32_t priority) {
    Request request =
        MakeRequest(absl::StrCat(++num_requests_), num_prompt, 1, topic);
    request.retention = {{.priority = priority}};
    const RequestId id = blockmgr::Submit(&driver, std::move(request));
    driver.Drain();
    return driver.served(id).finish->num_cached_tokens;
  };
  // Twelve blocks are kept: 90, 60, 75. The next one has to take four.
  serve(1, 16, 90);
  serve(2, 16, 60);
  serve(3, 16, 75);
  EXPECT_EQ(driver.scheduler().stats().blocks.free_blocks, 0);
  serve(4, 16, 0);
  EXPECT_EQ(serve(1, kPrompt, 90), 16);
  EXPECT_EQ(serve(3, kPrompt, 75), 16);
  EXPECT_EQ(serve(2, kPrompt, 0), 0);
}

// Whatever is wished for ever: a request that needs the whole pool has it at
// once.
TEST_F(RetentionTest, NeverPins) {
  for (const int32_t topic : {1, 2, 3}) Serve(topic, {{.priority = 100}});
  const BlockManagerStats before = driver_.scheduler().stats().blocks;
  EXPECT_EQ(before.cached_blocks, 12);
  const RequestId big = Submit(MakeRequest("", 50, 7, 9));
  driver_.Step();
  EXPECT_EQ(driver_.CountTokensInPlan(big), 50);
  driver_.Drain();
  EXPECT_EQ(driver_.served(big).outputs.size(), 7u);
  EXPECT_EQ(driver_.served(big).finish->num_preemptions, 0);
  EXPECT_EQ(driver_.scheduler().stats().blocks.reclaimed_blocks,
            before.reclaimed_blocks + 12);
  for (const int32_t topic : {1, 2, 3}) EXPECT_EQ(Serve(topic), 0);
}

// The blocks that tokens of the range are in, and no others.
TEST_F(RetentionTest, OnlyTheRangeIsKept) {
  struct Case {
    int32_t begin;
    int32_t end;
    int32_t num_kept;
  };
  for (const auto& [begin, end, num_kept] : std::vector<Case>{{0, 1, 4},
                                                              {0, 4, 4},
                                                              {0, 5, 8},
                                                              {3, 8, 8},
                                                              {0, 12, 12},
                                                              {0, 13, 16},
                                                              {0, 0, 16},
                                                              {4, 0, 0}}) {
    SCOPED_TRACE(absl::StrCat("[", begin, ", ", end, ")"));
    driver_.scheduler().ResetPrefixCache();
    Serve(kTopic, {{.begin = begin, .end = end, .priority = 80}});
    ServeOthers();
    EXPECT_EQ(Serve(kTopic), num_kept);
  }
}

TEST_F(RetentionTest, OfSeveralRangesTheHighestPriorityCounts) {
  // The first pages, then the last: 80, and below the default.
  Serve(kTopic, {{.begin = 8, .priority = 0},
                 {.end = 12, .priority = 80},
                 {.end = 4, .priority = 36}});
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 12);
}

TEST_F(RetentionTest, WithoutAnEndItCoversOutputs) {
  for (const int32_t end : {0, 5}) {
    SCOPED_TRACE(end);
    driver_.scheduler().ResetPrefixCache();
    Request request = MakeRequest("", 5, 12, kTopic);
    request.retention = {{.end = end, .priority = 80}};
    const RequestId id = Submit(request);
    driver_.Drain();
    ServeOthers();
    const std::vector<int32_t>& outputs = driver_.served(id).outputs;
    request.prompt.insert(request.prompt.end(), outputs.begin(), outputs.end());
    request.retention.clear();
    EXPECT_EQ(Serve(std::move(request)), end == 0 ? 16 : 8);
  }
}

TEST_F(RetentionTest, AClockThatGoesBackEndsNothingEarlier) {
  SetTime(1'000'000);
  EXPECT_EQ(Serve(kTopic, {{.priority = 90, .duration_ms = 1000}}), 0);
  SetTime(500);
  // From the time that the clock has been at.
  EXPECT_EQ(Serve(kTopic + 50, {{.priority = 90, .duration_ms = 1000}}), 0);
  SetTime(1'000'999);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
  EXPECT_EQ(Serve(kTopic + 50), 16);
}

TEST_F(RetentionTest, TheEndOfTimeIsATimeLikeAnyOther) {
  SetTime(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Serve(kTopic, {{.priority = 90, .duration_ms = 1000}}), 0);
  ServeOthers();
  EXPECT_EQ(Serve(kTopic), 16);
}

}  // namespace
}  // namespace blockmgr
