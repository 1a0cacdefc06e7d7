// Engines that do not answer.
#include <cstddef>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StepTimeoutCoreTest : public CoreTest {
 protected:
  StepTimeoutCoreTest() : CoreTest(FakeScheduler::Make, 10) {}
};

TEST_F(StepTimeoutCoreTest, AnEngineThatDoesNotAnswerIsLost) {
  const auto first = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  ASSERT_EQ(first->plans.size(), 1u);
  RunFor(12);
  EXPECT_FALSE(first->closed.has_value());
  RunFor(0.5);
  ASSERT_TRUE(first->closed.has_value());
  EXPECT_THAT(*first->closed,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "expected the result of the oldest step within 10 s "
                       "(--step-timeout), got none for 12 s"));
  EXPECT_FALSE(Stats(false).engine_attached);
  EXPECT_THAT(engine_changes_, ElementsAre(true, false));
  Answer(first, 0);  // too late: ignored
  EXPECT_THAT(tokens->lines, IsEmpty());
  // Its requests go on with the next one.
  const auto second = AttachAndOpen();
  ASSERT_EQ(second->plans.size(), 1u);
  Answer(second, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7"));
}

TEST_F(StepTimeoutCoreTest, TheTimeIsOfTheOldestPlan) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 100));
  for (size_t i = 0; i < 20; ++i) {
    RunFor(9);
    Answer(engine, i);
    ASSERT_FALSE(engine->closed.has_value());
  }
  ASSERT_OK(Cancel("r"));
  Answer(engine, 20);
  RunFor(1000);  // nothing is out
  EXPECT_FALSE(engine->closed.has_value());
}

// Stopped, or its machine asleep: the answer waits to be read.
TEST_F(StepTimeoutCoreTest, TheDaemonsOwnAbsenceIsNotTheEngines) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  RunFor(10);
  now_ += 1000;
  RunFor(0.5);  // others are read first
  EXPECT_FALSE(engine->closed.has_value());
  Answer(engine, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7"));
  // It has as long for the next one.
  RunFor(12);
  EXPECT_FALSE(engine->closed.has_value());
  RunFor(0.5);
  EXPECT_TRUE(engine->closed.has_value());
}

}  // namespace
}  // namespace blockmgr
