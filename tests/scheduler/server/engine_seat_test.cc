#include "scheduler/server/engine_seat.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

constexpr uint64_t kEpoch = 77;

class EngineSeatTest : public ::testing::Test {
 protected:
  // Returns the session of an engine that attaches.
  uint64_t Attach(const std::string& name, ServedModel model = {},
                  std::unique_ptr<Scheduler> next = nullptr) {
    AttachEngine command;
    command.name = name;
    command.model = std::make_shared<ServedModel>(std::move(model));
    const Attachment attachment = seat_.Attach(&command, {}, std::move(next));
    EXPECT_EQ(attachment.epoch, kEpoch);
    return attachment.session;
  }
  absl::Status CheckAttach(bool replace, bool may_replace) const {
    AttachEngine command;
    command.replace = replace;
    command.may_replace = may_replace;
    return seat_.CheckAttach(command);
  }
  absl::Status CheckOpen(uint64_t session, bool may_replace = true,
                         uint64_t epoch = kEpoch) const {
    OpenSteps command;
    command.epoch = epoch;
    command.session = session;
    command.may_replace = may_replace;
    return seat_.CheckOpen(command);
  }
  std::shared_ptr<RecordingEngine> Open(uint64_t session) {
    EXPECT_OK(CheckOpen(session));
    auto engine = std::make_shared<RecordingEngine>();
    seat_.Open(engine);
    return engine;
  }
  // Makes one pass a second until the given time.
  void PassUntil(double seconds) {
    for (; now_ <= seconds; ++now_) seat_.BeginPass(now_);
  }

  static auto Stale(const std::string& what) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr("STALE_EPOCH: " + what));
  }

  double now_ = 0;
  EngineSeat seat_{kEpoch, /*step_timeout_seconds=*/10,
                   /*max_steps_in_flight=*/2};
};

TEST_F(EngineSeatTest, AnEngineHasTheSeatUntilItLeaves) {
  EXPECT_THAT(seat_.CheckTaken(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CheckOpen(0), Stale("session"));
  const uint64_t session = Attach("one", {.name = "m"});
  EXPECT_FALSE(seat_.is_taken());
  EXPECT_EQ(seat_.name(), "");
  EXPECT_THAT(CheckOpen(session, true, kEpoch + 1), Stale("epoch"));
  const auto engine = Open(session);
  EXPECT_OK(seat_.CheckTaken());
  EXPECT_TRUE(seat_.IsTakenBy(engine));
  EXPECT_FALSE(seat_.IsTakenBy(std::make_shared<RecordingEngine>()));
  EXPECT_EQ(seat_.name(), "one");
  EXPECT_EQ(seat_.model()->name, "m");
  EXPECT_THAT(CheckOpen(session), StatusIs(absl::StatusCode::kAlreadyExists));
  seat_.Leave();
  EXPECT_FALSE(seat_.is_taken());
  EXPECT_EQ(seat_.name(), "one");
  EXPECT_THAT(CheckOpen(session), Stale("session"));
}

TEST_F(EngineSeatTest, EveryAttachmentMakesEarlierSessionsStale) {
  const uint64_t first = Attach("one");
  const uint64_t second = Attach("two");
  EXPECT_THAT(CheckOpen(first), Stale("session"));
  EXPECT_OK(CheckOpen(second));
}

TEST_F(EngineSeatTest, OnlySomeMayReplace) {
  EXPECT_OK(CheckAttach(false, false));
  EXPECT_OK(CheckAttach(true, false));
  const auto engine = Open(Attach("one"));
  EXPECT_THAT(CheckAttach(false, true),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("\"one\" is attached already")));
  const auto denied = StatusIs(absl::StatusCode::kPermissionDenied,
                               HasSubstr("replace: expected"));
  EXPECT_THAT(CheckAttach(true, false), denied);
  EXPECT_OK(CheckAttach(true, true));
  const uint64_t session = Attach("two");
  EXPECT_THAT(CheckOpen(session, /*may_replace=*/false), denied);
  EXPECT_OK(CheckOpen(session));
}

TEST_F(EngineSeatTest, TheEngineThatReplacesMayComeAfterTheOtherHasLeft) {
  const auto engine = Open(Attach("one"));
  const uint64_t session = Attach("two");
  EXPECT_EQ(seat_.name(), "one");
  EXPECT_EQ(seat_.attaching_name(), "two");
  seat_.Leave();
  Open(session);
  EXPECT_EQ(seat_.name(), "two");
}

TEST_F(EngineSeatTest, TheNextSchedulerIsTakenOnce) {
  Attach("one", {},
         std::make_unique<FakeScheduler>(SmallLayout(), SchedulerOptions()));
  EXPECT_TRUE(seat_.NeedsNoRequests());
  EXPECT_NE(seat_.TakeNextScheduler(), nullptr);
  EXPECT_EQ(seat_.TakeNextScheduler(), nullptr);
  EXPECT_FALSE(seat_.NeedsNoRequests());
}

TEST_F(EngineSeatTest, RequestsNeedTheModelsThatServedThem) {
  Open(Attach("one", {.name = "a", .context_tokens = 100}));
  seat_.NeedModel(/*idle=*/true);
  seat_.Leave();
  Open(Attach("two"));
  seat_.NeedModel(/*idle=*/false);
  const ServedModel other = {.name = "b"};
  EXPECT_EQ(seat_.DescribeOtherModel(&other),
            "model.name: live requests need \"a\", got \"b\"");
  Attach("three", other);
  EXPECT_TRUE(seat_.NeedsNoRequests());
  // The requests have ended. The engine of the next one tells no model.
  seat_.NeedModel(/*idle=*/true);
  EXPECT_EQ(seat_.DescribeOtherModel(&other), "");
  EXPECT_FALSE(seat_.NeedsNoRequests());
}

TEST_F(EngineSeatTest, ReadsTheNextResultOnceForEveryStep) {
  const auto engine = Open(Attach("one"));
  seat_.ReadNext();
  EXPECT_EQ(engine->num_reads, 0);
  seat_.SendPlan(StepPlan(), 5);
  seat_.SendPlan(StepPlan(), 6);
  EXPECT_EQ(engine->plans.size(), 2u);
  EXPECT_DOUBLE_EQ(seat_.EndStep(9), 4);
  EXPECT_DOUBLE_EQ(seat_.EndStep(9), 3);
  seat_.ReadNext();
  seat_.ReadNext();
  EXPECT_EQ(engine->num_reads, 1);
}

// The timeout is 10 s, and an AwakeClock's grace is 2 s.
TEST_F(EngineSeatTest, TheOldestPlanHasATimeout) {
  const auto engine = Open(Attach("one"));
  PassUntil(100);
  EXPECT_OK(seat_.CheckStepTimeout());  // no plan is out
  seat_.SendPlan(StepPlan(), 100);
  PassUntil(105);
  seat_.SendPlan(StepPlan(), 105);
  PassUntil(112);
  EXPECT_OK(seat_.CheckStepTimeout());
  PassUntil(113);
  EXPECT_THAT(seat_.CheckStepTimeout(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "expected the result of the oldest step within 10 s "
                       "(--step-timeout), got none for 13 s"));
  seat_.EndStep(113);
  EXPECT_OK(seat_.CheckStepTimeout());
  PassUntil(118);
  EXPECT_FALSE(seat_.CheckStepTimeout().ok());
  seat_.Close(absl::DeadlineExceededError("slow"));
  EXPECT_THAT(engine->closed,
              Optional(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_TRUE(seat_.is_taken());
  seat_.Leave();
  EXPECT_OK(seat_.CheckStepTimeout());
}

}  // namespace
}  // namespace blockmgr
