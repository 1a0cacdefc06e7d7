// Which engine is served.
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AttachTest : public CoreTest {
 protected:
  std::shared_ptr<RecordingEngine> Replace(const ModelLayout& layout) {
    auto engine = std::make_shared<RecordingEngine>();
    const absl::StatusOr<Attachment> attached = Attach(layout, 0, true);
    EXPECT_OK(attached);
    EXPECT_OK(Open(77, attached->session, engine));
    return engine;
  }
};

TEST_F(AttachTest, OneEngineAtATime) {
  const auto engine = AttachAndOpen();
  EXPECT_THAT(Attach(SmallLayout()), StatusIs(absl::StatusCode::kAlreadyExists,
                                              HasSubstr("\"fake\"")));
  EXPECT_FALSE(engine->closed.has_value());
}

TEST_F(AttachTest, RequestsGoOnWithTheEngineThatReplacesOne) {
  const auto hung = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Answer(hung, 0);
  const auto engine = Replace(SmallLayout());
  EXPECT_THAT(*hung->closed, StatusIs(absl::StatusCode::kAborted,
                                      HasSubstr("has taken its place")));
  EXPECT_THAT(engine_changes_, ElementsAre(true, false, true));
  Answer(hung, 1);  // too late
  ASSERT_FALSE(engine->plans.empty());
  Answer(engine, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7", "r[1]=7", "r ends 0"));
}

TEST_F(AttachTest, AnEngineThatDoesNotFitReplacesNone) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 1));
  ModelLayout other = SmallLayout();
  ++other.num_blocks;
  EXPECT_THAT(Attach(other, 0, true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("layout.num_blocks")));
  EXPECT_FALSE(engine->closed.has_value());
  Answer(engine, 0);
  EXPECT_EQ(tokens->lines.back(), "r ends 0");
  // Nobody waits for the old geometry any more.
  const auto next = Replace(other);
  EXPECT_TRUE(engine->closed.has_value());
  ASSERT_OK(Submit("a", "s", 1));
  Answer(next, 0);
  EXPECT_EQ(tokens->lines.back(), "s ends 0");
}

TEST_F(AttachTest, WhatHappensToEnginesIsTold) {
  const auto engine = AttachAndOpen();
  EXPECT_EQ(last_engine_change_, "fake");
  Run(EngineLost{engine});
  EXPECT_EQ(last_engine_change_, "fake: its stream has ended");
}

}  // namespace
}  // namespace blockmgr
