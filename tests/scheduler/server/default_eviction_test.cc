// What becomes of requests that say nothing of evictions.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

class DefaultEvictionTest : public CoreTest {
 protected:
  explicit DefaultEvictionTest(RequestEviction eviction = Recency(4))
      : CoreTest(&Scheduler::Create, 0, std::move(eviction)) {}

  // Serves a request of 100 prompt tokens; how often it was evicted from.
  int CountEvictions(Request request, bool says_nothing) {
    const auto engine = AttachAndOpen();
    const auto tokens = OpenStream("a");
    absl::Status submitted = absl::UnknownError("no reply");
    Run(SubmitCommand{
        "a", std::move(request),
        [&submitted](absl::Status s) { submitted = std::move(s); },
        says_nothing});
    EXPECT_OK(submitted);
    int count = 0;
    for (size_t i = 0; i < engine->plans.size(); ++i) {
      count += static_cast<int>(engine->plans[i].evictions.size());
      StepResult result = engine->Answer(i);
      for (EvictionOutcome& outcome : result.evictions) {
        outcome.counts.assign(4, 4);  // of 2 layers x 2 heads
      }
      Run(EngineResult{engine, &result});
    }
    EXPECT_EQ(tokens->lines.back(), "r ends 0");
    return count;
  }
};

TEST_F(DefaultEvictionTest, IsForThoseThatSayNothing) {
  EXPECT_EQ(CountEvictions(MakeRequest("r", 100, 3), true), 1);
}

TEST_F(DefaultEvictionTest, IsNotForThoseThatAskForNone) {
  EXPECT_EQ(CountEvictions(MakeRequest("r", 100, 3), false), 0);
}

class UnfitDefaultEvictionTest : public DefaultEvictionTest {
 protected:
  static RequestEviction WithStates() {
    RequestEviction eviction = Recency(4);
    eviction.policy.scorer.kind = ScorerKind::kH2o;
    return eviction;
  }
  UnfitDefaultEvictionTest() : DefaultEvictionTest(WithStates()) {}
};

TEST_F(UnfitDefaultEvictionTest, RefusesAnEngineThatCannotDoIt) {
  EXPECT_THAT(Attach(SmallLayout()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("default eviction is not for this engine: "
                                 "eviction.policy: ")));
}

}  // namespace
}  // namespace blockmgr
