// Engines: which one is served, and those that do not answer.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AttachTest : public CoreTest {
 protected:
  // An attachment that is to take the place of the engine; its session.
  uint64_t AttachNext(const ModelLayout& layout = SmallLayout()) {
    const absl::StatusOr<Attachment> attached = Attach(layout, 0, true, "next");
    EXPECT_OK(attached);
    return attached.ok() ? attached->session : 0;
  }
  std::shared_ptr<RecordingEngine> OpenNext(uint64_t session) {
    auto engine = std::make_shared<RecordingEngine>();
    EXPECT_OK(Open(77, session, engine));
    return engine;
  }
  auto StaleSession() {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr("STALE_EPOCH: session"));
  }

  ModelLayout other_ = [] {
    ModelLayout layout = SmallLayout();
    ++layout.num_blocks;
    return layout;
  }();
};

TEST_F(AttachTest, OneEngineAtATime) {
  const auto engine = AttachAndOpen();
  EXPECT_THAT(Attach(SmallLayout()), StatusIs(absl::StatusCode::kAlreadyExists,
                                              HasSubstr("\"fake\"")));
  EXPECT_FALSE(engine->closed.has_value());
}

// The scheduler of the engine before goes on, if nothing else differs.
TEST_F(AttachTest, AbilitiesOfTheNextEngineAreChecked) {
  query_stats_ = {{"chat", "1a2b"}};
  const auto first = AttachAndOpen();
  Run(EngineLost{first});
  query_stats_["a b"] = "3c4d";
  EXPECT_THAT(Attach(SmallLayout()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("query_stats: expected")));
  query_stats_.erase("a b");
  query_stats_["code"] = "3c4d";
  EXPECT_OK(Attach(SmallLayout()));
}

TEST_F(AttachTest, RequestsGoOnWithTheEngineThatReplacesOne) {
  const auto hung = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Answer(hung, 0);
  const uint64_t session = AttachNext();
  EXPECT_FALSE(hung->closed.has_value());
  const auto engine = OpenNext(session);
  EXPECT_THAT(*hung->closed,
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("\"next\" has taken its place")));
  EXPECT_THAT(engine_changes_, ElementsAre(true, true));
  EXPECT_EQ(last_engine_change_, "next, in the place of fake");
  EXPECT_EQ(Stats(false).engine_name, "next");
  Answer(hung, 1);  // too late
  ASSERT_FALSE(engine->plans.empty());
  Answer(engine, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7", "r[1]=7", "r ends 0"));
  EXPECT_THAT(Open(77, session, std::make_shared<RecordingEngine>()),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(AttachTest, TheOldEngineServesUntilTheNewOneIsThere) {
  const auto old = AttachAndOpen();
  const auto tokens = OpenStream("a");
  const uint64_t never = AttachNext();
  ASSERT_OK(Submit("a", "r", 1));
  Answer(old, 0);
  EXPECT_EQ(tokens->lines.back(), "r ends 0");
  EXPECT_EQ(Stats(false).engine_name, "fake");
  EXPECT_THAT(Attach(SmallLayout()),
              StatusIs(absl::StatusCode::kAlreadyExists));
  const uint64_t session = AttachNext();
  EXPECT_THAT(Open(77, never, std::make_shared<RecordingEngine>()),
              StaleSession());
  EXPECT_FALSE(old->closed.has_value());
  OpenNext(session);
  EXPECT_TRUE(old->closed.has_value());
}

TEST_F(AttachTest, TheOldEngineMayBeLostFirst) {
  const auto old = AttachAndOpen();
  const uint64_t session = AttachNext();
  Run(EngineLost{old});
  EXPECT_FALSE(Stats(false).engine_attached);
  const auto engine = OpenNext(session);
  EXPECT_TRUE(Stats(false).engine_attached);
  EXPECT_EQ(last_engine_change_, "next");
  EXPECT_THAT(engine_changes_, ElementsAre(true, false, true));
}

TEST_F(AttachTest, NobodyReplacesAnEngineOnceAllIsClosed) {
  const auto old = AttachAndOpen();
  const uint64_t session = AttachNext();
  Run(CloseAll{absl::UnavailableError("bye")});
  EXPECT_THAT(Open(77, session, std::make_shared<RecordingEngine>()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AttachTest, WhoMayNotReplaceDoesNot) {
  const auto old = AttachAndOpen();
  const uint64_t session = AttachNext();
  may_replace_ = false;
  const auto denied = StatusIs(absl::StatusCode::kPermissionDenied,
                               HasSubstr("replace: expected"));
  EXPECT_THAT(Attach(SmallLayout(), 0, true), denied);
  // Nor by the session of somebody who may.
  EXPECT_THAT(Open(77, session, std::make_shared<RecordingEngine>()), denied);
  EXPECT_FALSE(old->closed.has_value());
  may_replace_ = true;
  OpenNext(session);
  EXPECT_TRUE(old->closed.has_value());
}

TEST_F(AttachTest, WhoMayNotReplaceMayAttachWhereThereIsNone) {
  may_replace_ = false;
  Run(EngineLost{AttachAndOpen()});
  EXPECT_FALSE(AttachAndOpen()->closed.has_value());
}

TEST_F(AttachTest, ReplaceNeedsNoRightWhereThereIsNobodyToReplace) {
  may_replace_ = false;
  EXPECT_TRUE(Attach(SmallLayout(), 0, true).ok());
}

TEST_F(AttachTest, AnEngineThatDoesNotFitReplacesNone) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 1));
  EXPECT_THAT(Attach(other_, 0, true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("layout.num_blocks")));
  EXPECT_FALSE(engine->closed.has_value());
  Answer(engine, 0);
  EXPECT_EQ(tokens->lines.back(), "r ends 0");
  // Now nobody waits for the old geometry, but until the new one is there,
  // somebody may come.
  const uint64_t session = AttachNext(other_);
  ASSERT_OK(Submit("a", "s", 1));
  EXPECT_THAT(Open(77, session, std::make_shared<RecordingEngine>()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another geometry")));
  Answer(engine, 1);
  EXPECT_EQ(tokens->lines.back(), "s ends 0");
  EXPECT_EQ(Stats(false).layout, SmallLayout());
  const auto next = OpenNext(session);
  EXPECT_TRUE(engine->closed.has_value());
  EXPECT_EQ(Stats(false).layout, other_);
  ASSERT_OK(Submit("a", "t", 1));
  Answer(next, 0);
  EXPECT_EQ(tokens->lines.back(), "t ends 0");
}

TEST_F(AttachTest, LiveRequestsNeedAnEngineThatSamplesAsTheOneBefore) {
  constexpr uint32_t kTopK = EngineSampling::BitOf(SamplingField::kTopK);
  const absl::StatusOr<Attachment> attached =
      Attach(SmallLayout(), 0, false, "first", {.fields = kTopK});
  ASSERT_OK(attached);
  const auto first = OpenNext(attached->session);
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Run(EngineLost{first});
  const auto attach = [this](const EngineSampling& sampling) {
    return Attach(SmallLayout(), 0, false, "next", sampling);
  };
  EXPECT_THAT(attach({.fields = EngineSampling::BitOf(SamplingField::kTopP)}),
              RefusedFor("sampling_fields: live requests need an engine with "
                         "2, got an engine without it"));
  EXPECT_THAT(attach({.fields = kTopK, .vocabulary_size = 9}),
              RefusedFor("vocabulary_size: live requests need 0, got 9"));
  EXPECT_THAT(attach({.fields = kTopK, .end_token_ids = {1, 2}}),
              RefusedFor("end_token_ids: live requests need [], got [1, 2]"));
  EXPECT_OK(attach({.fields = kTopK}));
  EXPECT_OK(Cancel("r"));
  EXPECT_OK(attach({.vocabulary_size = 9}));
}

TEST_F(AttachTest, LiveRequestsGoOnWithAnEngineThatCanDoMore) {
  const auto first = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Answer(first, 0);
  const CoreStats before = Stats(false);
  query_stats_ = {{"chat", "1a2b"}};
  supports_window_evictions_ = true;
  const EngineSampling all = {.fields = EngineSampling::kAllFields};
  const absl::StatusOr<Attachment> attached =
      Attach(SmallLayout(), 0, true, "next", all);
  ASSERT_OK(attached);
  // Until its stream opens, requests are those of the first one.
  EXPECT_EQ(Stats(false).sampling, EngineSampling());
  const auto next = OpenNext(attached->session);
  EXPECT_EQ(Stats(false).sampling, all);
  EXPECT_EQ(Stats(false).generation, before.generation);
  ASSERT_FALSE(next->plans.empty());
  Answer(next, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7", "r[1]=7", "r ends 0"));

  // From here on, requests may use what it can do more.
  ASSERT_OK(Submit("a", "s", 2));
  Run(EngineLost{next});
  EXPECT_THAT(
      Attach(SmallLayout()),
      RefusedFor("sampling_fields: live requests need an engine with 1, "
                 "got an engine without it"));
  supports_window_evictions_ = false;
  EXPECT_THAT(Attach(SmallLayout(), 0, false, "last", all),
              RefusedFor("supports_window_evictions: live requests need 1, got "
                         "0"));
}

// Its prompts are tokens of the model, and its answer has begun in it.
TEST_F(AttachTest, LiveRequestsNeedTheirModel) {
  const auto set_model = [this](const ServedModel& model) {
    model_ = std::make_shared<const ServedModel>(model);
  };
  set_model({.name = "a", .context_tokens = 100});
  const auto first = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 1));
  set_model({.name = "b", .context_tokens = 100});
  EXPECT_THAT(Attach(SmallLayout(), 0, true),
              RefusedFor("model.name: live requests need \"a\", got \"b\""));
  set_model({.name = "a", .context_tokens = 99});
  EXPECT_THAT(
      Attach(SmallLayout(), 0, true),
      RefusedFor("model.context_tokens: live requests need 100, got 99"));
  set_model({.name = "a", .context_tokens = 101});
  EXPECT_OK(Attach(SmallLayout(), 0, true));
  set_model({});  // it does not tell
  EXPECT_OK(Attach(SmallLayout(), 0, true));

  // None waits when it attaches, but somebody may come before its stream opens.
  Answer(first, 0);
  set_model({.name = "b"});
  const uint64_t generation = Stats(false).generation;
  const uint64_t session = AttachNext();
  ASSERT_OK(Submit("a", "s", 1));
  EXPECT_THAT(Open(77, session, std::make_shared<RecordingEngine>()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another geometry or model")));
  Answer(first, 1);
  OpenNext(session);
  EXPECT_EQ(Stats(false).model->name, "b");
  EXPECT_EQ(Stats(false).generation, generation);
}

// An engine that tells nothing of its model in between changes nothing: the
// requests are those of the first one.
TEST_F(AttachTest, LiveRequestsNeedTheirModelWhoeverServedThemSince) {
  const auto attach = [this](const ServedModel& model) {
    model_ = std::make_shared<const ServedModel>(model);
    return Attach(SmallLayout());
  };
  const auto serve = [&](const ServedModel& model) {
    const absl::StatusOr<Attachment> attached = attach(model);
    EXPECT_OK(attached);
    return OpenNext(attached.ok() ? attached->session : 0);
  };
  const auto tokens = OpenStream("a");
  const auto first = serve({.name = "a", .context_tokens = 100});
  ASSERT_OK(Submit("a", "r", 1));
  Run(EngineLost{first});
  const auto second = serve({});
  Run(EngineLost{second});
  EXPECT_THAT(attach({.name = "b"}),
              RefusedFor("model.name: live requests need \"a\", got \"b\""));
  EXPECT_THAT(
      attach({.context_tokens = 99}),
      RefusedFor("model.context_tokens: live requests need 100, got 99"));

  // A request of an engine that tells nothing is served by the next one, which
  // does: from then on it needs that model.
  const auto third = serve({});
  Answer(third, 0);
  ASSERT_OK(Submit("a", "s", 1));
  Run(EngineLost{third});
  const auto fourth = serve({.name = "c"});
  Run(EngineLost{fourth});
  const auto fifth = serve({});
  Run(EngineLost{fifth});
  EXPECT_THAT(attach({.name = "b"}),
              RefusedFor("model.name: live requests need \"c\", got \"b\""));

  // Once all requests have ended, an engine of any model may attach.
  const auto sixth = serve({});
  Answer(sixth, 0);
  EXPECT_THAT(tokens->lines,
              ElementsAre("r[0]=7", "r ends 0", "s[0]=7", "s ends 0"));
  ASSERT_OK(Submit("a", "t", 1));
  Run(EngineLost{sixth});
  EXPECT_OK(attach({.name = "b"}));
}

// A client that subtracts counts must see that the counts began again.
TEST_F(AttachTest, AnotherGeometryIsAnotherGeneration) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 1));
  Answer(engine, 0);
  now_ = 105;
  Stats(/*reset_peaks=*/true);
  ASSERT_OK(Submit("a", "s", 1));
  Answer(engine, 1);
  now_ = 107;
  const CoreStats before = Stats(false);
  EXPECT_EQ(before.scheduler.num_steps, 2u);
  EXPECT_GT(before.max_used_blocks, 0);
  EXPECT_DOUBLE_EQ(before.peaks_since_seconds, 5);

  // One of the same geometry goes on with the counts.
  Run(EngineLost{engine});
  const auto same = AttachAndOpen();
  EXPECT_EQ(Stats(false).generation, before.generation);
  EXPECT_EQ(Stats(false).scheduler.num_steps, 2u);

  Run(EngineLost{same});
  now_ = 108;
  AttachAndOpen(other_);
  const CoreStats after = Stats(false);
  EXPECT_EQ(after.epoch, before.epoch);
  EXPECT_NE(after.generation, before.generation);
  EXPECT_EQ(after.scheduler.num_steps, 0u);
  EXPECT_EQ(after.max_used_blocks, 0);
  EXPECT_EQ(after.max_running, 0);
  EXPECT_DOUBLE_EQ(after.peaks_since_seconds, 8);
}

TEST_F(AttachTest, WhatHappensToEnginesIsTold) {
  const auto engine = AttachAndOpen();
  EXPECT_EQ(last_engine_change_, "fake");
  Run(EngineLost{engine});
  EXPECT_EQ(last_engine_change_, "fake: its stream has ended");
}

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
