// What the core does with commands, one pass each.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "scheduler/server/core.h"
#include "scheduler/server/request_metrics.h"
#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A core that has an engine, and a client of the session "a".
class ServedCoreTest : public CoreTest {
 protected:
  const std::shared_ptr<RecordingEngine> engine_ = AttachAndOpen();
  const std::shared_ptr<RecordingTokens> tokens_ = OpenStream("a");
};

TEST_F(CoreTest, SubmitNeedsAnEngineAndAStream) {
  EXPECT_THAT(Submit("a", "r", 1),
              StatusIs(absl::StatusCode::kUnavailable, "no engine attached"));
  // An attachment without its step stream is not an engine yet.
  ASSERT_OK(Attach(SmallLayout()));
  EXPECT_THAT(Submit("a", "r", 1), StatusIs(absl::StatusCode::kUnavailable));
  const auto engine = AttachAndOpen();
  EXPECT_THAT(Submit("a", "r", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("client_session")));
  const auto tokens = OpenStream("a");
  EXPECT_OK(Submit("a", "r", 1));
  EXPECT_THAT(Submit("a", "r", 1), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(CoreTest, TokensGoToTheClientThatAsked) {
  const auto engine = AttachAndOpen();
  const auto a = OpenStream("a");
  const auto b = OpenStream("b");
  ASSERT_OK(Submit("a", "ra", 2));
  ASSERT_OK(Submit("b", "rb", 1));
  ASSERT_EQ(engine->plans.size(), 2u);
  Answer(engine, 0);
  Answer(engine, 1);
  Answer(engine, 2);
  EXPECT_THAT(a->lines, ElementsAre("ra[0]=7", "ra[1]=7", "ra ends 0"));
  EXPECT_THAT(b->lines, ElementsAre("rb[0]=7", "rb ends 0"));
  EXPECT_EQ(engine->num_reads, 3);  // one for each result
}

TEST_F(ServedCoreTest, CancelEndsARequestOnce) {
  ASSERT_OK(Submit("a", "r", 5));
  EXPECT_OK(Cancel("r"));
  EXPECT_THAT(Cancel("r"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(tokens_->lines, ElementsAre("r ends 2"));
  Answer(engine_, 0);  // of a step that was out: nothing more comes
  EXPECT_EQ(tokens_->lines.size(), 1u);
}

TEST_F(CoreTest, TheEndOfAStreamCancelsItsRequestsOnly) {
  const auto engine = AttachAndOpen();
  const auto a = OpenStream("a");
  const auto b = OpenStream("b");
  ASSERT_OK(Submit("a", "ra", 5));
  ASSERT_OK(Submit("b", "rb", 5));
  Run(ClientGone{"a", b});  // not a's stream: nothing happens
  EXPECT_EQ(Stats(false).scheduler.num_running, 2);
  Run(ClientGone{"a", a});
  EXPECT_EQ(Stats(false).scheduler.num_running, 1);
  EXPECT_TRUE(a->lines.empty());
  EXPECT_THAT(Submit("a", "r2", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  OpenStream("a");  // the session may come back
  EXPECT_OK(Submit("a", "r2", 1));
}

TEST_F(CoreTest, WhatTheEngineSaysGoesToWhoseTokensTheyAre) {
  const auto engine = AttachAndOpen();
  const auto a = OpenStream("a");
  const auto b = OpenStream("b");
  ASSERT_OK(Submit("a", "r", 9));
  ASSERT_OK(Submit("b", "s", 9));
  ASSERT_OK(Submit("b", "t", 9));
  Answer(engine, 0);
  ASSERT_EQ(engine->plans.at(2).slots.size(), 2u);  // r and t
  Answer(engine, 1);
  StepResult result = engine->Answer(2);
  const bool r_is_first = engine->plans[2].positions[0] == 1;
  result.token_data = {r_is_first ? "of r" : "", r_is_first ? "" : "of r"};
  Run(EngineResult{engine, &result});
  EXPECT_THAT(a->lines, ElementsAre("r[0]=7", "r[1]=7 of r"));
  EXPECT_THAT(b->lines, ElementsAre("s[0]=7", "t[0]=7"));
}

TEST_F(CoreTest, LogProbsComeBeforeTheTokensOfTheirStep) {
  const auto engine = AttachAndOpen();
  const auto a = OpenStream("a");
  const auto b = OpenStream("b");
  ASSERT_OK(Submit("a", "r", 9));
  ASSERT_OK(Submit("b", "s", 9));
  StepResult result = engine->Answer(0);  // of r alone
  result.logprobs = {{.run = 0, .prompt = {.first_index = 5}}};
  Run(EngineResult{engine, &result});
  EXPECT_THAT(a->lines, ElementsAre("r prompt[5] at 0", "r[0]=7"));
  EXPECT_THAT(b->lines, ElementsAre());
}

TEST_F(CoreTest, SecondStreamOfASessionIsRefused) {
  const auto engine = AttachAndOpen();
  const auto first = OpenStream("a");
  absl::Status second;
  Run(OpenClient{"a", std::make_shared<RecordingTokens>(),
                 [&second](absl::Status s) { second = std::move(s); }});
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_OK(Submit("a", "r", 1));
  Answer(engine, 0);
  EXPECT_EQ(first->lines.size(), 2u);
}

TEST_F(CoreTest, ClientTooFarBehindLosesItsRequests) {
  const auto engine = AttachAndOpen();
  const auto slow = OpenStream("slow");
  const auto quick = OpenStream("quick");
  ASSERT_OK(Submit("slow", "s", 9));
  ASSERT_OK(Submit("quick", "q", 9));
  slow->overflow = true;
  Answer(engine, 0);
  EXPECT_EQ(Stats(false).scheduler.num_running, 1);
  EXPECT_THAT(Cancel("s"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(slow->closed.has_value());  // it has closed itself
  Answer(engine, 1);
  EXPECT_EQ(quick->lines.size(), 1u);
}

TEST_F(CoreTest, StaleEpochAndSessionHaveNoEffect) {
  ASSERT_OK_AND_ASSIGN(const Attachment first, Attach(SmallLayout()));
  ASSERT_OK_AND_ASSIGN(const Attachment second, Attach(SmallLayout()));
  const auto engine = std::make_shared<RecordingEngine>();
  const auto stale =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("STALE_EPOCH"));
  EXPECT_THAT(Open(first.epoch, first.session, engine), stale);
  EXPECT_THAT(Open(first.epoch + 1, second.session, engine), stale);
  EXPECT_FALSE(Stats(false).engine_attached);
  EXPECT_OK(Open(second.epoch, second.session, engine));
  EXPECT_TRUE(Stats(false).engine_attached);
  EXPECT_THAT(engine_changes_, ElementsAre(true));
}

TEST_F(CoreTest, RequestsWaitForTheNextEngine) {
  const auto first = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Answer(first, 0);
  Run(EngineLost{first});
  EXPECT_FALSE(Stats(false).engine_attached);
  EXPECT_THAT(Submit("a", "s", 2), StatusIs(absl::StatusCode::kUnavailable));
  Answer(first, 1);  // a result that was on its way is ignored

  ModelLayout other = SmallLayout();
  other.num_blocks = 63;
  const std::vector<std::pair<std::string, std::function<void(ModelLayout*)>>>
      cases = {
          {"num_blocks: live requests need 64, got 63",
           [](auto* layout) { layout->num_blocks = 63; }},
          {"head_dim: live requests need 8, got 16",
           [](auto* layout) { layout->head_dim = 16; }},
          {"dtype: live requests need float32, got float16",
           [](auto* layout) { layout->dtype = DType::kFloat16; }},
          {"num_shards: live requests need 1, got 2",
           [](auto* layout) { layout->num_shards = 2; }},
          {"window: live requests need 0, got 64",
           [](auto* layout) { layout->window = 64; }},
          {"group_windows.size(): live requests need 0, got 1",
           [](auto* layout) { layout->group_windows = {64}; }},
      };
  for (const auto& [text, change] : cases) {
    ModelLayout layout = SmallLayout();
    change(&layout);
    EXPECT_THAT(Attach(layout), RefusedFor("layout." + text));
  }
  EXPECT_THAT(Attach(SmallLayout(), 5),
              RefusedFor("num_host_blocks: live requests need 0, got 5"));
  const auto second = AttachAndOpen();
  ASSERT_EQ(second->plans.size(), 1u);
  Answer(second, 0);
  EXPECT_THAT(tokens->lines, ElementsAre("r[0]=7", "r[1]=7", "r ends 0"));
  EXPECT_THAT(engine_changes_, ElementsAre(true, false, true));
  Run(EngineLost{first});  // late: not the engine any more
  EXPECT_TRUE(Stats(false).engine_attached);

  Run(EngineLost{second});
  EXPECT_OK(Attach(other));  // nobody waits: another geometry is welcome
  EXPECT_EQ(Stats(false).layout->num_blocks, 63);
}

TEST_F(ServedCoreTest, WithoutALimitAnEngineMayTakeForEver) {
  ASSERT_OK(Submit("a", "r", 2));
  now_ += 1e9;
  EXPECT_TRUE(Stats(false).engine_attached);
}

TEST_F(CoreTest, TheNextEngineHasTheSameWindows) {
  ModelLayout layout = SmallLayout();
  layout.group_windows = {16, 64};
  const auto first = AttachAndOpen(layout);
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Run(EngineLost{first});
  layout.group_windows = {16, 48};
  EXPECT_THAT(Attach(layout),
              RefusedFor("layout.group_windows[1]: live requests need 64, got "
                         "48"));
}

TEST_F(CoreTest, TheNextEngineHasAtLeastTheSameQueryStats) {
  query_stats_ = {{"chat", "1a2b"}, {"code", "3c4d"}};
  const auto first = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  Run(EngineLost{first});
  query_stats_["code"] = "5e6f";
  EXPECT_THAT(Attach(SmallLayout()),
              RefusedFor("query_stats['code']: live requests need 3c4d, got "
                         "5e6f"));
  query_stats_.erase("code");
  EXPECT_THAT(
      Attach(SmallLayout()),
      RefusedFor("query_stats['code']: live requests need 3c4d, got none"));
  query_stats_ = {{"chat", "1a2b"}, {"code", "3c4d"}, {"talk", ""}};
  EXPECT_OK(Attach(SmallLayout()));
}

TEST_F(ServedCoreTest, WrongResultEndsTheEngine) {
  ASSERT_OK(Submit("a", "r", 2));
  StepResult wrong = engine_->Answer(0);
  wrong.sampled.clear();
  Run(EngineResult{engine_, &wrong});
  ASSERT_TRUE(engine_->closed.has_value());
  EXPECT_THAT(*engine_->closed, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(engine_->num_reads, 0);
  EXPECT_FALSE(Stats(false).engine_attached);
  EXPECT_EQ(AttachAndOpen()->plans.size(), 1u);  // the request goes on
}

class EvictCoreTest : public CoreTest {
 protected:
  using CoreTest::CoreTest;
  EvictCoreTest() = default;

  static EvictionCommand AtCut(int32_t cut) {
    EvictionCommand command;
    command.cut = cut;
    return command;
  }
  // The reply, once there is one.
  std::shared_ptr<std::optional<absl::StatusOr<EvictionEffect>>> Evict(
      const std::string& id, const EvictionCommand& command = AtCut(16)) {
    auto reply =
        std::make_shared<std::optional<absl::StatusOr<EvictionEffect>>>();
    Run(EvictCommand{id, command,
                     [reply](absl::StatusOr<EvictionEffect> effect) {
                       *reply = std::move(effect);
                     }});
    return reply;
  }
};

TEST_F(EvictCoreTest, RepliesWhenTheEvictionHasEnded) {
  EXPECT_THAT((*Evict("r"))->status(),
              StatusIs(absl::StatusCode::kUnavailable));
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  EXPECT_THAT((*Evict("r"))->status(), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(Submit("a", "r", 9));
  const auto reply = Evict("r");
  EXPECT_THAT((*Evict("r"))->status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  Answer(engine, 0);
  EXPECT_FALSE(reply->has_value());
  Answer(engine, 1);
  ASSERT_TRUE(reply->has_value());
  ASSERT_OK(**reply);
  EXPECT_EQ((**reply)->cut, 16);
  EXPECT_THAT((**reply)->kept_entries, ElementsAre(1, 1, 1, 1));
}

TEST_F(EvictCoreTest, RepliesWhenTheRequestOrTheEngineEndsFirst) {
  const auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 9));
  ASSERT_OK(Submit("a", "s", 9));
  const auto r = Evict("r");
  const auto s = Evict("s");
  ASSERT_OK(Cancel("r"));
  ASSERT_TRUE(r->has_value());
  EXPECT_THAT((*r)->status(), StatusIs(absl::StatusCode::kAborted));
  Run(EngineLost{engine});
  ASSERT_TRUE(s->has_value());
  EXPECT_THAT((*s)->status(), StatusIs(absl::StatusCode::kAborted));
}

class RealCoreTest : public EvictCoreTest {
 protected:
  RealCoreTest() : EvictCoreTest(Scheduler::Create) {}
};

// It had been part of no step, and is to be part of none.
TEST_F(RealCoreTest, AnEvictionAnsweredWithTheEnginesEndIsNotCarriedOut) {
  ModelLayout layout = SmallLayout();
  layout.page_size = 2;
  const auto first = AttachAndOpen(layout);
  const auto tokens = OpenStream("a");
  Request request;
  request.id = "r";
  request.prompt.assign(20, 3);
  request.max_tokens = 20;
  ASSERT_OK(Submit("a", std::move(request)));
  Answer(first, 0);
  Answer(first, 1);
  // As many steps are in flight as may be.
  const auto lost = Evict("r", RecencyCommand(4));
  for (const StepPlan& plan : first->plans) EXPECT_TRUE(plan.evictions.empty());
  EXPECT_FALSE(lost->has_value());
  Run(EngineLost{first});
  ASSERT_TRUE(lost->has_value());
  EXPECT_THAT((*lost)->status(), StatusIs(absl::StatusCode::kAborted));
  const auto second = AttachAndOpen(layout);
  Answer(second, 0);
  Answer(second, 1);
  EXPECT_GT(second->plans.size(), 2u);
  for (const StepPlan& plan : second->plans) {
    EXPECT_TRUE(plan.evictions.empty());
  }
  // Whoever still wants it asks again.
  const auto reply = Evict("r", RecencyCommand(4));
  for (size_t i = 2; i < second->plans.size() && !reply->has_value(); ++i) {
    Answer(second, i);
  }
  ASSERT_TRUE(reply->has_value());
  EXPECT_OK((*reply)->status());
}

// An eviction ends and the next one is ordered before the pass is over.
TEST_F(RealCoreTest, EvictsAgainInThePassOfTheAnswer) {
  ModelLayout layout = SmallLayout();
  layout.page_size = 2;
  const auto engine = AttachAndOpen(layout);
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", MakeRequest("r", 20, 12)));
  Answer(engine, 0);
  const auto first = Evict("r", RecencyCommand(8));
  size_t next = 1;
  while (engine->plans.at(next).evictions.empty()) Answer(engine, next++);
  EXPECT_FALSE(first->has_value());
  std::optional<absl::Status> second;
  const StepResult result = engine->Answer(next++);
  Command answer = EngineResult{engine, &result};
  Command evict = EvictCommand{
      "r", RecencyCommand(2), [&second](absl::StatusOr<EvictionEffect> effect) {
        EXPECT_FALSE(second.has_value()) << "answered twice";
        second = std::move(effect).status();
      }};
  core_.BeginPass(now_);
  core_.Handle(&answer);
  core_.Handle(&evict);
  core_.EndPass();
  ASSERT_TRUE(first->has_value());
  EXPECT_OK((*first)->status());
  while (next < engine->plans.size()) Answer(engine, next++);
  ASSERT_TRUE(second.has_value());
  EXPECT_OK(*second);
}

class RetentionCoreTest : public CoreTest {
 protected:
  RetentionCoreTest() : CoreTest(Scheduler::Create) {}

  // Runs a prompt of two pages and a token; its tokens that were cached.
  int32_t Serve(const std::shared_ptr<RecordingEngine>& engine, int32_t topic,
                std::vector<RetentionWish> retention = {}) {
    Request request;
    request.id = absl::StrCat("r", engine->plans.size());
    request.prompt.assign(2 * SmallLayout().page_size + 1, topic);
    request.max_tokens = 1;
    request.retention = std::move(retention);
    EXPECT_OK(Submit("c", std::move(request)));
    const StepPlan& plan = engine->plans.back();
    EXPECT_EQ(plan.starts.size(), 1u);
    Answer(engine, engine->plans.size() - 1);
    return plan.starts.front().num_cached_tokens;
  }
};

// The scheduler's time is the core's.
TEST_F(RetentionCoreTest, AWishEndsWithItsDuration) {
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 9;
  const auto engine = AttachAndOpen(layout);
  OpenStream("c");
  for (const double seconds : {4.875, 5.0}) {
    Serve(engine, 1, {{.priority = 80, .duration_ms = 5000}});
    now_ += seconds;
    for (int32_t topic = 2; topic < 8; ++topic) {
      EXPECT_EQ(Serve(engine, topic), 0);
    }
    EXPECT_EQ(Serve(engine, 1), seconds < 5.0 ? 32 : 0);
  }
}

TEST_F(ServedCoreTest, IntegratesRunningRequestsOverTime) {
  EXPECT_DOUBLE_EQ(Stats(false).running_request_seconds, 0);
  now_ = 101;
  ASSERT_OK(Submit("a", "r", 1));
  now_ = 103;
  ASSERT_OK(Submit("a", "s", 1));
  now_ = 104.5;  // r ran 2 s alone and 1.5 s beside s
  Answer(engine_, 0);
  now_ = 110;  // s ran 5.5 s alone
  const CoreStats stats = Stats(true);
  EXPECT_DOUBLE_EQ(stats.running_request_seconds, 2 + 2 * 1.5 + 5.5);
  EXPECT_DOUBLE_EQ(stats.clock_seconds, 10);
  EXPECT_EQ(stats.max_running, 2);
  EXPECT_EQ(stats.max_used_blocks, 20);
  const CoreStats after = Stats(false);
  EXPECT_EQ(after.max_running, 1);
  EXPECT_EQ(after.max_used_blocks, 10);
}

TEST_F(ServedCoreTest, DrainWaitsForRequestsAndRefusesNewOnes) {
  ASSERT_OK(Submit("a", "r", 1));
  bool drained = false;
  Run(Drain{[&drained](const absl::Status& s) { drained = s.ok(); }});
  EXPECT_THAT(Submit("a", "s", 1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(drained);
  tokens_->has_sent_all = false;
  Answer(engine_, 0);
  EXPECT_FALSE(drained);
  tokens_->has_sent_all = true;
  Stats(false);
  EXPECT_TRUE(drained);
  EXPECT_FALSE(tokens_->closed.has_value());
}

TEST_F(ServedCoreTest, CloseAllCancelsAndCloses) {
  ASSERT_OK(Submit("a", "r", 5));
  Run(CloseAll{absl::UnavailableError("bye")});
  EXPECT_THAT(tokens_->lines, ElementsAre("r ends 2"));
  ASSERT_TRUE(tokens_->closed.has_value());
  EXPECT_THAT(*tokens_->closed,
              StatusIs(absl::StatusCode::kUnavailable, "bye"));
  ASSERT_TRUE(engine_->closed.has_value());
  EXPECT_THAT(Attach(SmallLayout()), StatusIs(absl::StatusCode::kUnavailable));
}

// What a histogram with these durations alone would have.
DurationHistogram Durations(const std::vector<double>& seconds) {
  DurationHistogram histogram;
  for (const double duration : seconds) histogram.Observe(duration);
  return histogram;
}

void ExpectDurations(const DurationHistogram& got,
                     const std::vector<double>& seconds) {
  EXPECT_EQ(got.counts, Durations(seconds).counts);
  EXPECT_DOUBLE_EQ(got.sum_seconds, Durations(seconds).sum_seconds);
}

TEST_F(ServedCoreTest, MeasuresHowLongRequestsTake) {
  now_ = 200;
  ASSERT_OK(Submit("a", "r", 3));  // its first step is issued at once
  now_ = 200.25;
  Answer(engine_, 0);  // the first token, and the second step
  now_ = 201;
  Answer(engine_, 1);
  now_ = 203.25;
  Answer(engine_, 2);  // the end
  const RequestMetrics metrics = Stats(false).requests;
  ExpectDurations(metrics.queue, {0});
  ExpectDurations(metrics.first_token, {0.25});
  ExpectDurations(metrics.output_token, {1.5});
  ExpectDurations(metrics.request, {3.25});
  ExpectDurations(metrics.step, {0.25, 0.75, 2.25});
}

TEST_F(ServedCoreTest, ARequestIsInTheQueueUntilItsFirstStep) {
  now_ = 200;
  ASSERT_OK(Submit("a", "r", 1));
  ASSERT_OK(Submit("a", "s", 1));
  now_ = 210;
  ASSERT_OK(Submit("a", "late", 1));  // both steps are out
  now_ = 214;
  Answer(engine_, 0);
  ExpectDurations(Stats(false).requests.queue, {0, 0, 4});
}

TEST_F(ServedCoreTest, TimesAreOfRequestsThatWereNotCutShort) {
  ASSERT_OK(Submit("a", "one", 1));
  now_ += 5;
  Answer(engine_, 0);
  ASSERT_OK(Submit("a", "cancelled", 9));
  now_ += 7;
  Answer(engine_, 1);
  ASSERT_OK(Cancel("cancelled"));
  const RequestMetrics metrics = Stats(false).requests;
  ExpectDurations(metrics.first_token, {5, 7});
  ExpectDurations(metrics.request, {5});
  ExpectDurations(metrics.output_token, {});  // a single token has no rate
  const auto ended = [&metrics](FinishReason reason) {
    return metrics.finished[static_cast<size_t>(reason)];
  };
  EXPECT_EQ(ended(FinishReason::kLength), 1u);
  EXPECT_EQ(ended(FinishReason::kCancelled), 1u);
  EXPECT_EQ(ended(FinishReason::kStop), 0u);
}

TEST_F(CoreTest, StepsOfAnEngineThatIsGoneAreNotMeasured) {
  auto engine = AttachAndOpen();
  const auto tokens = OpenStream("a");
  ASSERT_OK(Submit("a", "r", 2));
  now_ += 100;
  Run(EngineLost{engine});
  engine = AttachAndOpen();
  now_ += 0.5;
  Answer(engine, 0);
  ExpectDurations(Stats(false).requests.step, {0.5});
}

TEST_F(CoreTest, CountsRefusedSubmissionsByCode) {
  const auto refused = [this](absl::StatusCode code) {
    return Stats(false).requests.refused[static_cast<size_t>(code)];
  };
  EXPECT_FALSE(Submit("a", "r", 1).ok());
  EXPECT_EQ(refused(absl::StatusCode::kUnavailable), 1u);
  const auto engine = AttachAndOpen();
  EXPECT_FALSE(Submit("a", "r", 1).ok());
  EXPECT_FALSE(Submit("a", "s", 1).ok());
  EXPECT_EQ(refused(absl::StatusCode::kFailedPrecondition), 2u);
  const auto tokens = OpenStream("a");
  EXPECT_OK(Submit("a", "r", 1));
  EXPECT_EQ(refused(absl::StatusCode::kOk), 0u);
  EXPECT_EQ(refused(absl::StatusCode::kUnavailable), 1u);
}

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
      Answer(engine, i);
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
