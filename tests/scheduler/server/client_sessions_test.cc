#include "scheduler/server/client_sessions.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/core_harness.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

class ClientSessionsTest : public ::testing::Test {
 protected:
  std::shared_ptr<RecordingTokens> Open(const std::string& session) {
    auto tokens = std::make_shared<RecordingTokens>();
    EXPECT_TRUE(sessions_.Open(session, tokens));
    return tokens;
  }
  // Adds request `number`, which clients know by a name.
  RequestId Add(const std::string& session, uint64_t number,
                const std::string& name) {
    const RequestId request{number};
    sessions_.Add(session, request, name, now_);
    return request;
  }
  static void Finish(RequestId request, FinishReason reason,
                     int32_t num_output_tokens, Effects* effects) {
    FinishEffect effect;
    effect.request = request;
    effect.reason = reason;
    effect.num_output_tokens = num_output_tokens;
    effects->finished.push_back(std::move(effect));
  }
  std::vector<RequestId> Deliver(Effects effects) {
    return sessions_.Deliver(&effects, now_);
  }
  // Begins an eviction. The result is its reply, when there is one.
  std::shared_ptr<std::optional<absl::StatusOr<EvictionEffect>>> Evict(
      RequestId request, uint64_t number) {
    auto reply =
        std::make_shared<std::optional<absl::StatusOr<EvictionEffect>>>();
    sessions_.BeginEviction(request, number,
                            [reply](absl::StatusOr<EvictionEffect> effect) {
                              EXPECT_FALSE(reply->has_value()) << "twice";
                              *reply = std::move(effect);
                            });
    return reply;
  }

  double now_ = 100;
  RequestMetrics metrics_;
  ClientSessions sessions_{&metrics_};
};

TEST_F(ClientSessionsTest, ASessionIsOpenUntilItIsRemoved) {
  EXPECT_THAT(sessions_.CheckOpen("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("stream, got \"a\"")));
  const auto tokens = Open("a");
  EXPECT_OK(sessions_.CheckOpen("a"));
  const auto other = std::make_shared<RecordingTokens>();
  EXPECT_FALSE(sessions_.Open("a", other));
  EXPECT_TRUE(sessions_.HasStream("a", tokens));
  EXPECT_FALSE(sessions_.HasStream("a", other));
  EXPECT_FALSE(sessions_.HasStream("b", tokens));
  EXPECT_THAT(sessions_.Remove("a"), IsEmpty());
  EXPECT_FALSE(sessions_.CheckOpen("a").ok());
  EXPECT_FALSE(tokens->closed.has_value());
}

TEST_F(ClientSessionsTest, EffectsGoToTheirSessions) {
  const auto a = Open("a");
  const auto b = Open("b");
  const RequestId x = Add("a", 1, "x");
  const RequestId y = Add("b", 2, "y");
  Effects effects;
  effects.tokens = {{x, 7, 0}, {y, 8, 0}, {x, 9, 1}};
  effects.token_data = {{x, 1, "data"}};
  Finish(x, FinishReason::kLength, 2, &effects);
  EXPECT_THAT(Deliver(effects), IsEmpty());
  EXPECT_THAT(a->lines, ElementsAre("x[0]=7", "x[1]=9 data", "x ends 0"));
  EXPECT_THAT(b->lines, ElementsAre("y[0]=8"));
  EXPECT_THAT(sessions_.LiveRequests(), ElementsAre(y));
}

TEST_F(ClientSessionsTest, RequestsOfARemovedSessionEndUnheard) {
  const auto a = Open("a");
  const RequestId second = Add("a", 12, "second");
  const RequestId first = Add("a", 11, "first");
  EXPECT_THAT(sessions_.Remove("a"), ElementsAre(first, second));
  EXPECT_THAT(sessions_.LiveRequests(), ElementsAre(first, second));
  Effects effects;
  Finish(first, FinishReason::kCancelled, 0, &effects);
  EXPECT_THAT(Deliver(effects), IsEmpty());
  EXPECT_THAT(a->lines, IsEmpty());
  EXPECT_THAT(sessions_.LiveRequests(), ElementsAre(second));
}

TEST_F(ClientSessionsTest, AClientTooFarBehindIsCutOff) {
  const auto slow = Open("slow");
  const auto quick = Open("quick");
  slow->overflow = true;
  const RequestId done = Add("slow", 1, "done");
  const RequestId live = Add("slow", 2, "live");
  const RequestId other = Add("quick", 3, "other");
  Effects effects;
  effects.tokens = {{done, 7, 0}, {other, 7, 0}};
  Finish(done, FinishReason::kLength, 1, &effects);
  EXPECT_THAT(Deliver(effects), ElementsAre(live));
  EXPECT_FALSE(sessions_.CheckOpen("slow").ok());
  EXPECT_OK(sessions_.CheckOpen("quick"));
  EXPECT_THAT(sessions_.LiveRequests(), ElementsAre(live, other));
}

TEST_F(ClientSessionsTest, RequestsOfACallAreItsAnswers) {
  const auto tokens = Open("a");
  const RequestId first = Add("a", 5, "call");
  const RequestId second = Add("a", 6, "call#1");
  sessions_.NameCall("a", "call");
  EXPECT_EQ(sessions_.TakeCall("other"), std::nullopt);
  EXPECT_THAT(sessions_.TakeCall("call"), Optional(ElementsAre(first, second)));
  EXPECT_EQ(sessions_.TakeCall("call"), std::nullopt);
  EXPECT_OK(sessions_.CheckOpen("a"));
}

// The session of the first call is removed after the second call has begun.
TEST_F(ClientSessionsTest, ANameIsThatOfTheLatestCall) {
  const auto first = Open("first");
  sessions_.NameCall("first", "call");
  const auto second = Open("second");
  const RequestId request = Add("second", 1, "call");
  sessions_.NameCall("second", "call");
  EXPECT_THAT(sessions_.Remove("first"), IsEmpty());
  EXPECT_THAT(sessions_.TakeCall("call"), Optional(ElementsAre(request)));
}

TEST_F(ClientSessionsTest, CallsAreClosedFirst) {
  const auto stream = Open("stream");
  const auto call = Open("call");
  sessions_.NameCall("call", "r");
  const absl::Status bye = absl::UnavailableError("bye");
  sessions_.CloseCalls(bye);
  EXPECT_THAT(call->closed, Optional(bye));
  EXPECT_FALSE(stream->closed.has_value());
  sessions_.CloseAll(bye);
  EXPECT_THAT(stream->closed, Optional(bye));
  EXPECT_FALSE(sessions_.CheckOpen("stream").ok());
  EXPECT_FALSE(sessions_.CheckOpen("call").ok());
}

TEST_F(ClientSessionsTest, AllIsSentWhenEverySessionHasSentAll) {
  EXPECT_TRUE(sessions_.HasSentAll());
  const auto a = Open("a");
  const auto b = Open("b");
  b->has_sent_all = false;
  EXPECT_FALSE(sessions_.HasSentAll());
  b->has_sent_all = true;
  EXPECT_TRUE(sessions_.HasSentAll());
}

TEST_F(ClientSessionsTest, TimesOfRequestsAreObserved) {
  const auto tokens = Open("a");
  const RequestId request = Add("a", 1, "r");
  StepPlan plan;
  plan.starts.emplace_back().request = request;
  sessions_.NoteStarts(plan, now_ + 2);
  sessions_.NoteStarts(plan, now_ + 50);  // it was preempted and starts again
  now_ += 3;
  Effects first;
  first.tokens = {{request, 7, 0}};
  Deliver(first);
  now_ += 8;
  Effects last;
  last.tokens = {{request, 7, 1}, {request, 7, 2}};
  Finish(request, FinishReason::kStop, 3, &last);
  Deliver(last);
  EXPECT_DOUBLE_EQ(metrics_.queue.sum_seconds, 2);
  EXPECT_DOUBLE_EQ(metrics_.first_token.sum_seconds, 3);
  EXPECT_DOUBLE_EQ(metrics_.output_token.sum_seconds, 8.0 / 2);
  EXPECT_DOUBLE_EQ(metrics_.request.sum_seconds, 11);
  EXPECT_EQ(metrics_.finished[static_cast<size_t>(FinishReason::kStop)], 1u);
}

TEST_F(ClientSessionsTest, TheEndOfAnEvictionIsItsReply) {
  const auto tokens = Open("a");
  const RequestId request = Add("a", 1, "r");
  const auto reply = Evict(request, 5);
  Effects effects;
  effects.evictions.resize(2);
  effects.evictions[0].request = request;  // not ordered by a client
  effects.evictions[1].request = request;
  effects.evictions[1].command = 5;
  effects.evictions[1].cut = 16;
  sessions_.EndEvictions(&effects);
  ASSERT_TRUE(reply->has_value());
  ASSERT_OK(**reply);
  EXPECT_EQ((**reply)->cut, 16);
  sessions_.EndEvictions(&effects);  // answers nothing twice
}

TEST_F(ClientSessionsTest, AnEvictionEndsWithItsRequest) {
  const auto tokens = Open("a");
  const RequestId request = Add("a", 1, "r");
  const auto preempted = Evict(request, 5);
  const auto reply = Evict(request, 6);
  EXPECT_THAT(
      (*preempted)->status(),
      StatusIs(absl::StatusCode::kAborted, "the request was preempted first"));
  Effects effects;
  Finish(request, FinishReason::kCancelled, 0, &effects);
  Deliver(effects);
  EXPECT_THAT((*reply)->status(),
              StatusIs(absl::StatusCode::kAborted, "the request ended first"));
}

TEST_F(ClientSessionsTest, AbortedEvictionsAreWithdrawn) {
  FakeScheduler scheduler(SmallLayout(), {});
  Request request;
  request.id = "r";
  ASSERT_OK_AND_ASSIGN(const RequestId id, scheduler.Submit(request));
  ASSERT_OK_AND_ASSIGN(const uint64_t number, scheduler.Evict(id, {}));
  const auto tokens = Open("a");
  sessions_.Add("a", id, "r", now_);
  const auto reply = Evict(id, number);
  sessions_.AbortEvictions(absl::AbortedError("over"), &scheduler);
  EXPECT_THAT((*reply)->status(), StatusIs(absl::StatusCode::kAborted, "over"));
  EXPECT_FALSE(scheduler.WithdrawEviction(id, number)) << "it is withdrawn";
  EXPECT_OK(scheduler.Evict(id, {}));
}

}  // namespace
}  // namespace blockmgr
