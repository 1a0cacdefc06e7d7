#include "scheduler/scheduler.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/compression_points.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(SchedulerOptionsTest, CreateChecksOptionsAndLayout) {
  SchedulerOptions options = PlainOptions();
  options.max_waiting = 0;
  EXPECT_THAT(Scheduler::Create(SmallLayout(4, 8), options),
              StatusIs(kInvalid, HasSubstr("max_waiting")));
  ModelLayout layout = SmallLayout(4, 8);
  layout.num_heads = 0;
  EXPECT_THAT(Scheduler::Create(layout, PlainOptions()),
              StatusIs(kInvalid, HasSubstr("num_heads")));
}

TEST(SchedulerOptionsTest, PoolsAreNoLargerThanTheirBookkeepingMayBe) {
  SchedulerOptions options = PlainOptions();
  options.max_num_blocks = 9;  // the null block among them
  EXPECT_THAT(Scheduler::Create(SmallLayout(4, 8), options), IsOk());
  EXPECT_THAT(Scheduler::Create(SmallLayout(4, 9), options),
              StatusIs(kInvalid,
                       "num_blocks: expected 2 to 9 (to max_num_blocks), got "
                       "10"));
  options.engine.num_host_blocks = 10;
  EXPECT_THAT(Scheduler::Create(SmallLayout(4, 8), options),
              StatusIs(kInvalid, HasSubstr("num_host_blocks")));
  // Tokens are kept by page: few blocks may have many.
  options.engine.num_host_blocks = 0;
  options.max_num_blocks = 40;
  EXPECT_THAT(Scheduler::Create(SmallLayout(64, 9), options), IsOk());
  EXPECT_THAT(Scheduler::Create(SmallLayout(64, 10), options),
              StatusIs(kInvalid,
                       "num_blocks: expected at most 10 of 64 tokens "
                       "(max_num_blocks of 16), got 11"));
}

// The driver checks that a refusal leaves the state as it was.
TEST(SchedulerSubmitTest, NamesTheFieldAtFault) {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 16;
  SchedulerDriver driver(SmallLayout(4, 1000), options);
  const std::vector<std::pair<std::string, std::function<void(Request*)>>>
      cases = {
          {"request_id", [](Request* r) { r->id = ""; }},
          {"request_id", [](Request* r) { r->id = std::string(129, 'a'); }},
          {"prompt", [](Request* r) { r->prompt.clear(); }},
          {"prompt[1]", [](Request* r) { r->prompt[1] = -1; }},
          {"prompt", [](Request* r) { r->prompt.resize(512, 1); }},
          {"stop_token_ids[0]", [](Request* r) { r->stop_token_ids = {-5}; }},
          {"stop_token_ids: expected at most 4096, got 4097",
           [](Request* r) { r->stop_token_ids.assign(4097, 1); }},
          {"retention: expected at most 64, got 65",
           [](Request* r) { r->retention.assign(65, {}); }},
          {"max_tokens", [](Request* r) { r->max_tokens = 0; }},
          {"max_tokens", [](Request* r) { r->max_tokens = 513; }},
          {"engine_data: expected at most 16384 bytes, got 16385",
           [](Request* r) { r->engine_data.assign(16385, 'a'); }},
          {"lora", [](Request* r) { r->scope.lora = std::string(257, 'a'); }},
          {"media: expected at most 4096, got 4097",
           [](Request* r) { r->scope.media.assign(4097, {}); }},
          {"media[0].begin",
           [](Request* r) {
             r->scope.media = {{20, 1, "h"}};
           }},
          {"retention[1].priority",
           [](Request* r) {
             r->retention = {{}, {.priority = 101}};
           }},
          {"retention[0].end",
           [](Request* r) {
             r->retention = {{5, 5}};
           }},
          {"retention[0].duration_ms",
           [](Request* r) { r->retention = {{.duration_ms = -1}}; }},
          {"window", [](Request* r) { r->eviction = SnapKv(10, 4); }},
          {"window", [](Request* r) { r->eviction = SnapKv(0, 4); }},
          {"tokens_per_head", [](Request* r) { r->eviction = Recency(0); }},
          {"ratio",
           [](Request* r) {
             r->eviction = Recency(4);
             r->eviction.target.kind = EvictionTarget::Kind::kRatio;
             r->eviction.target.ratio = {.numerator = 1, .denominator = 0};
           }},
          {"external",
           [](Request* r) {
             r->eviction = Recency(4);
             r->eviction.policy.scorer.kind = ScorerKind::kExternal;
           }},
          {"external",
           [](Request* r) {
             r->eviction = Recency(4);
             r->eviction.policy.budget.kind = BudgetKind::kExternal;
           }},
      };
  for (const auto& [name, spoil] : cases) {
    Request request = MakeRequest("a", 20, 4);
    spoil(&request);
    EXPECT_THAT(driver.Submit(request), StatusIs(kInvalid, HasSubstr(name)));
  }
  // 16 tokens, of which 7 may be taken by other sequences.
  Request request = MakeRequest("a", 20, 4);
  request.eviction = SnapKv(9, 4);
  EXPECT_THAT(driver.Submit(request), IsOk());
}

TEST(SchedulerSubmitTest, AcceptsExactlyMaxModelLen) {
  SchedulerDriver driver(SmallLayout(4, 1000), PlainOptions());
  EXPECT_THAT(driver.Submit(MakeRequest("a", 500, 12)), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("b", 500, 13)),
              StatusIs(kInvalid, HasSubstr("max_model_len")));
}

TEST(SchedulerSubmitTest, AnIdIsInUseUntilItsRequestEnds) {
  SchedulerDriver driver(SmallLayout(4, 8), PlainOptions());
  ASSERT_OK_AND_ASSIGN(const RequestId first,
                       driver.Submit(MakeRequest("a", 3, 2)));
  EXPECT_THAT(driver.Submit(MakeRequest("a", 5, 2)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'a'")));
  ASSERT_OK_AND_ASSIGN(const RequestId found, driver.scheduler().Find("a"));
  EXPECT_EQ(found, first);
  driver.Drain();
  EXPECT_THAT(driver.scheduler().Find("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a'")));
  ASSERT_OK_AND_ASSIGN(const RequestId second,
                       driver.Submit(MakeRequest("a", 3, 2)));
  EXPECT_NE(second, first);
  driver.Finish();
}

TEST(SchedulerSubmitTest, RefusesMoreThanMaxWaiting) {
  SchedulerOptions options = PlainOptions();
  options.max_waiting = 2;
  SchedulerDriver driver(SmallLayout(4, 8), options);
  EXPECT_THAT(driver.Submit(MakeRequest("a", 3, 2)), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("b", 3, 2)), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("c", 3, 2)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_waiting 2")));
  driver.Drain();
  EXPECT_THAT(driver.Submit(MakeRequest("c", 3, 2)), IsOk());
}

TEST(SchedulerSubmitTest, RefusesMoreThanMaxWaitingTokens) {
  SchedulerOptions options = PlainOptions();
  options.max_waiting_tokens = 5;
  SchedulerDriver driver(SmallLayout(4, 8), options);
  const auto tokens = [&driver] {
    return driver.scheduler().stats().num_waiting_tokens;
  };
  // Whoever waits alone may have as many as it likes.
  ASSERT_OK_AND_ASSIGN(const RequestId first,
                       driver.Submit(MakeRequest("a", 6, 2)));
  EXPECT_EQ(tokens(), 6);
  EXPECT_THAT(driver.Submit(MakeRequest("b", 1, 2)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("6 tokens of prompts wait, and 1 more are "
                                 "above max_waiting_tokens 5")));
  EXPECT_THAT(driver.Cancel(first), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("b", 3, 2)), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("c", 2, 2)), IsOk());
  EXPECT_THAT(driver.Submit(MakeRequest("d", 1, 2)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(tokens(), 5);
  driver.Drain();
  EXPECT_EQ(tokens(), 0);
}

// Each takes hundreds of bytes.
TEST(SchedulerSubmitTest, RefusesMorePointsAndMediaThanTheQueueHasRoomFor) {
  const ModelLayout layout = SmallLayout(1, 60);
  Request request = MakeRequest("a", 2500, 2);
  request.eviction = Recency(4);
  request.eviction.mode = EvictionMode::kEveryChunk;
  request.eviction.compress_every = 1;
  const size_t points = PlanCompressions(request.eviction, 2500, layout).size();
  ASSERT_GT(points, 2048u);
  ASSERT_LT(points, 2600u);
  request.scope.media = {{.begin = 3, .length = 2, .hash = "m"}};
  // 4096 is the least limit.
  for (const int64_t limit :
       {int64_t{4096}, static_cast<int64_t>(2 * points + 2)}) {
    SCOPED_TRACE(limit);
    SchedulerOptions options = PlainOptions();
    options.max_model_len = 4096;
    options.max_waiting_tokens = limit == 4096 ? 100'000 : 64 * limit;
    SchedulerDriver driver(layout, options);
    ASSERT_OK_AND_ASSIGN(const RequestId first, driver.Submit(request));
    std::vector<RequestId> others;
    const auto submit = [&](const char* id, bool has_room) {
      request.id = id;
      const auto submitted = driver.Submit(request);
      EXPECT_EQ(submitted.ok(), has_room) << submitted.status();
      if (submitted.ok()) {
        others.push_back(*submitted);
        return;
      }
      EXPECT_THAT(submitted.status(),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           HasSubstr("compression points and media wait")));
    };
    if (limit > 4096) submit("b", true);
    submit("c", false);
    EXPECT_OK(driver.Submit(MakeRequest("plain", 40, 2)));
    EXPECT_OK(driver.Cancel(first));
    submit("c", true);
    submit("d", false);
    for (const RequestId id : others) EXPECT_OK(driver.Cancel(id));
    submit("d", true);
    EXPECT_OK(driver.Cancel(others.back()));
    driver.Finish();
  }
}

TEST(SchedulerSubmitTest, EvictionCountsForNeverFits) {
  // After 10 tokens: 2 for the region of [0, 9) and one per position after it.
  for (const int32_t max_tokens : {9, 10, 11}) {
    SCOPED_TRACE(max_tokens);
    SchedulerDriver driver(SmallLayout(1, 12), PlainOptions());
    Request request = MakeRequest("a", 10, max_tokens);
    EXPECT_EQ(driver.Submit(request).ok(), max_tokens <= 3);
    request.id = "b";
    request.eviction = Recency(2);
    EXPECT_EQ(driver.Submit(request).ok(), max_tokens <= 10);
    driver.Finish();
  }
  // Nothing helps a prompt that is too long.
  SchedulerDriver driver(SmallLayout(1, 12), PlainOptions());
  Request request = MakeRequest("a", 13, 1);
  request.eviction = Recency(2);
  EXPECT_THAT(driver.Submit(request),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(SchedulerCancelTest, UnknownIdsAreNotFound) {
  SchedulerDriver driver(SmallLayout(4, 8), PlainOptions());
  const uint64_t before = driver.scheduler().StateHash();
  EXPECT_THAT(driver.Cancel(RequestId{77}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("77")));
  EXPECT_THAT(driver.Evict(RequestId{77}, RecencyCommand(1)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("77")));
  EXPECT_THAT(driver.scheduler().Find("x"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'x'")));
  EXPECT_EQ(driver.scheduler().StateHash(), before);
}

TEST(SchedulerCancelTest, EndsWaitingAndRunningRequestsOnce) {
  SchedulerOptions options = PlainOptions(3);
  options.max_num_seqs = 1;
  SchedulerDriver driver(SmallLayout(4, 8), options);
  ASSERT_OK_AND_ASSIGN(const RequestId a,
                       driver.Submit(MakeRequest("a", 6, 9)));
  ASSERT_OK_AND_ASSIGN(const RequestId b,
                       driver.Submit(MakeRequest("b", 6, 9)));
  driver.Issue();
  driver.Answer();
  while (driver.Issue()) {
  }
  EXPECT_THAT(driver.Cancel(a), IsOk());
  EXPECT_THAT(driver.Cancel(b), IsOk());
  EXPECT_THAT(driver.Cancel(a), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(driver.served(a).finish->reason, FinishReason::kCancelled);
  EXPECT_EQ(driver.served(a).finish->num_output_tokens, 1);
  EXPECT_EQ(driver.served(b).finish->reason, FinishReason::kCancelled);
  driver.Drain();  // the answers in flight are of no request
  EXPECT_EQ(driver.served(a).outputs.size(), 1);
  driver.CheckQuiescent();
}

class SchedulerEvictTest : public testing::Test {
 protected:
  SchedulerEvictTest() : driver_(SmallLayout(4, 40, 2, 3), PlainOptions()) {}

  SchedulerDriver driver_;
};

TEST_F(SchedulerEvictTest, RefusesARequestInPrefill) {
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       driver_.Submit(MakeRequest("a", 20, 30)));
  EXPECT_THAT(
      driver_.Evict(id, RecencyCommand(4)),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("prompt")));
  driver_.Issue();
  EXPECT_THAT(driver_.Evict(id, RecencyCommand(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  driver_.Answer();
  EXPECT_THAT(driver_.Evict(id, RecencyCommand(4)), IsOk());
}

TEST_F(SchedulerEvictTest, AllowsOneAtATime) {
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       driver_.Submit(MakeRequest("a", 20, 30)));
  driver_.Step();
  ASSERT_OK_AND_ASSIGN(const uint64_t first,
                       driver_.Evict(id, RecencyCommand(4)));
  EXPECT_THAT(
      driver_.Evict(id, RecencyCommand(4)),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("under way")));
  driver_.Issue();
  EXPECT_THAT(driver_.Evict(id, RecencyCommand(4)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  driver_.Answer();
  ASSERT_EQ(driver_.served(id).evictions.size(), 1);
  EXPECT_EQ(driver_.served(id).evictions[0].command, first);
  ASSERT_OK_AND_ASSIGN(const uint64_t second,
                       driver_.Evict(id, RecencyCommand(4)));
  EXPECT_NE(second, first);
}

TEST_F(SchedulerEvictTest, NamesTheFieldAtFault) {
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       driver_.Submit(MakeRequest("a", 20, 30)));
  driver_.Step();
  const auto scores = [](int32_t n) {
    return std::make_shared<const std::vector<float>>(n, 1.0f);
  };
  const auto budgets = [](std::vector<int32_t> values) {
    return std::make_shared<const std::vector<int32_t>>(std::move(values));
  };
  const auto external = [&](std::vector<int32_t> values) {
    return [given = budgets(std::move(values))](EvictionCommand* c) {
      c->policy.budget.kind = BudgetKind::kExternal;
      c->budgets = given;
    };
  };
  const std::vector<
      std::pair<std::string, std::function<void(EvictionCommand*)>>>
      cases = {
          {"cut", [](auto* c) { c->cut = 3; }},
          {"cut", [](auto* c) { c->cut = -4; }},
          {"cut", [](auto* c) { c->cut = 20; }},
          {"tokens_per_head", [](auto* c) { c->target.tokens = 0; }},
          {"sinks", [](auto* c) { c->policy.scorer.sinks = -1; }},
          {"scores", [&](auto* c) { c->scores = scores(96); }},
          {"cut",
           [&](auto* c) {
             c->cut = 0;
             c->policy.scorer.kind = ScorerKind::kExternal;
             c->scores = scores(96);
           }},
          {"scores",
           [&](auto* c) {
             c->policy.scorer.kind = ScorerKind::kExternal;
             c->scores = scores(95);
           }},
          {"scores",
           [](auto* c) { c->policy.scorer.kind = ScorerKind::kExternal; }},
          {"budgets",
           [&](auto* c) {
             c->budgets = budgets({1, 1, 1, 1, 1, 1});
           }},
          {"budgets",
           [](auto* c) { c->policy.budget.kind = BudgetKind::kExternal; }},
          {"budgets", external({1, 1, 1, 1, 1, -1})},
          {"budgets: expected one above 0", external({0, 0, 0, 0, 0, 0})},
      };
  for (const auto& [name, spoil] : cases) {
    EvictionCommand command = RecencyCommand(4, 16);
    spoil(&command);
    EXPECT_THAT(driver_.Evict(id, command),
                StatusIs(kInvalid, HasSubstr(name)));
  }
  EvictionCommand command = RecencyCommand(4, 16);
  command.policy.scorer.kind = ScorerKind::kExternal;
  command.scores = scores(96);
  command.policy.budget.kind = BudgetKind::kExternal;
  command.budgets = budgets({1, 9, 0, 2, 3, 1});
  EXPECT_THAT(driver_.Evict(id, command), IsOk());
  driver_.Issue();
  ASSERT_EQ(driver_.plan().evictions.size(), 1);
  EXPECT_EQ(driver_.plan().evictions[0].scores, command.scores);
  EXPECT_EQ(driver_.plan().evictions[0].budgets, command.budgets);
  driver_.Answer();
  // Not below what is compressed already.
  EXPECT_THAT(driver_.Evict(id, RecencyCommand(4, 16)),
              StatusIs(kInvalid, HasSubstr("above 16")));
  driver_.Finish();
}

}  // namespace
}  // namespace blockmgr
