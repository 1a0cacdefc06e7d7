// What the engine's answers bring about.

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(SchedulerUpdateTest, RefusesWrongAnswersAndChangesNothing) {
  SchedulerOptions options = PlainOptions(2);
  options.max_num_batched_tokens = 24;
  SchedulerDriver driver(SmallLayout(4, 30, 2, 2), options);
  Request request = MakeRequest("a", 22, 9);
  request.eviction = Recency(6);
  Submit(&driver, request);
  Submit(&driver, MakeRequest("b", 9, 9, 1));  // a first chunk of 2
  ASSERT_TRUE(driver.Issue());
  const std::vector<WrongAnswer> cases = {
      {"step", [](StepResult* r) { r->id = StepId{2}; }},
      {"step", [](StepResult* r) { r->id = StepId{0}; }},
      {"sampled", [](StepResult* r) { r->sampled.pop_back(); }},
      {"sampled", [](StepResult* r) { r->sampled.push_back(-1); }},
      {"sampled[0]", [](StepResult* r) { r->sampled[0] = -1; }},
      {"sampled[1]", [](StepResult* r) { r->sampled[1] = 5; }},
      {"token_data: expected none or 2, got 1",
       [](StepResult* r) { r->token_data = {"a"}; }},
      {"token_data[0]: expected at most 16384 bytes, got 16385",
       [](StepResult* r) {
         r->token_data = {std::string(16385, 'a'), ""};
       }},
      {"token_data[1]: expected at most 0 bytes of a run that samples "
       "nothing, got 1",
       [](StepResult* r) {
         r->token_data = {"", "a"};
       }},
      {"evictions", [](StepResult* r) { r->evictions.clear(); }},
      {"evictions", [](StepResult* r) { r->evictions.resize(2); }},
      {"counts", [](StepResult* r) { r->evictions[0].counts.pop_back(); }},
      {"layer 1, head 0",
       [](StepResult* r) {
         r->evictions[0].counts = {0, 0, -1, 0};
       }},
      {"layer 0, head 1",
       [](StepResult* r) {
         r->evictions[0].counts = {0, 21, 0, 0};
       }},
      {"6 pages",
       [](StepResult* r) {
         r->evictions[0].counts = {8, 8, 5, 1};
       }},
      {"evictions[0] (request \"a\", layer group 0): layout_checksum: "
       "expected 0x",
       [](StepResult* r) { *r->evictions[0].layout_checksum ^= 1; }},
      {"on 2 destinations, 0 of them blocks of the sequence, without a "
       "region before; docs/engine.md has the rule",
       [](StepResult* r) { *r->evictions[0].layout_checksum += 1; }},
  };
  driver.AnswerWith([&](StepResult* result) {
    ExpectRefused(cases, *result, &driver.scheduler());
    result->evictions[0].layout_checksum.reset();  // an engine may send none
  });
  driver.Finish();
}

constexpr int32_t kPromptTokens = 21;

// A request for the log-probabilities of its prompt and its outputs.
Request WithLogProbs(const std::string& id,
                     int32_t num_prompt = kPromptTokens) {
  Request request = MakeRequest(id, num_prompt, 5);
  request.sampling = SamplingParams{.logprobs = 0, .prompt_logprobs = 1};
  return request;
}

// As an engine has them whose tokens at a position are the position.
RunLogProbs RowsOf(const StepPlan& plan, size_t run,
                   int32_t num_prompt = kPromptTokens) {
  RunLogProbs rows{.run = static_cast<int32_t>(run)};
  const int32_t begin = plan.positions[run];
  const int32_t end = std::min(begin + plan.num_tokens[run], num_prompt - 1);
  rows.prompt.num_top = 1;
  for (int32_t i = begin + 1; i <= end; ++i) {
    rows.prompt.tokens.insert(rows.prompt.tokens.end(), {i, 999});
    rows.prompt.logprobs.insert(rows.prompt.logprobs.end(),
                                {-0.5f * static_cast<float>(i), -1.0f});
  }
  if (plan.samples[run] == 0) return rows;
  rows.outputs.tokens = {begin + plan.num_tokens[run]};
  rows.outputs.logprobs = {-3.0f};
  return rows;
}

SchedulerOptions LogProbOptions() {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 8;
  options.engine.sampling.fields = EngineSampling::kAllFields;
  return options;
}

// Issues and answers a step, with all rows that may be asked for.
void StepWithRows(Scheduler* scheduler, Effects* effects,
                  int32_t num_prompt = kPromptTokens) {
  StepPlan plan;
  ASSERT_TRUE(scheduler->Schedule(&plan));
  StepResult result = AnswerTo(plan);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    result.logprobs.push_back(RowsOf(plan, i, num_prompt));
  }
  ASSERT_OK(scheduler->Update(result, effects));
}

TEST(LogProbsTest, ArriveOnceForEveryChunkEvenIfItIsComputedAgain) {
  const auto scheduler =
      *Scheduler::Create(SmallLayout(4, 60), LogProbOptions());
  ASSERT_OK(scheduler->Submit(WithLogProbs("a")));
  Effects effects;
  StepWithRows(scheduler.get(), &effects);
  EXPECT_THAT(effects.logprobs, SizeIs(1));  // of a chunk that samples nothing
  StepWithRows(scheduler.get(), &effects);
  scheduler->LoseEngine(&effects);
  while (effects.tokens.size() < 2) StepWithRows(scheduler.get(), &effects);
  scheduler->LoseEngine(&effects);
  while (scheduler->has_unfinished_requests()) {
    StepWithRows(scheduler.get(), &effects);
  }
  std::vector<int32_t> prompt;
  std::vector<int32_t> outputs;
  for (const LogProbsEffect& effect : effects.logprobs) {
    const TokenLogProbs& rows = effect.logprobs;
    EXPECT_EQ(rows.tokens.size(), rows.logprobs.size());
    for (int32_t i = 0; i < rows.num_rows(); ++i) {
      const auto first = static_cast<size_t>(i) *
                         (size_t{1} + static_cast<size_t>(rows.num_top));
      if (effect.of_prompt) {
        EXPECT_EQ(rows.num_top, 1);
        EXPECT_EQ(rows.tokens[first], rows.first_index + i);
        EXPECT_EQ(rows.logprobs[first],
                  -0.5f * static_cast<float>(rows.tokens[first]));
        prompt.push_back(rows.first_index + i);
      } else {
        EXPECT_EQ(rows.tokens[first], kPromptTokens + rows.first_index);
        EXPECT_EQ(effect.num_outputs, rows.first_index);
        outputs.push_back(rows.first_index);
      }
    }
  }
  std::vector<int32_t> all_but_the_first(kPromptTokens - 1);
  std::iota(all_but_the_first.begin(), all_but_the_first.end(), 1);
  EXPECT_EQ(prompt, all_but_the_first);
  EXPECT_THAT(outputs, ElementsAre(0, 1, 2, 3, 4));
}

TEST(LogProbsTest, ArriveInPiecesThatFitIntoAMessage) {
  SchedulerOptions options = LogProbOptions();
  options.max_num_batched_tokens = 4096;
  options.max_model_len = 4096;
  const auto scheduler = *Scheduler::Create(SmallLayout(16, 260), options);
  ASSERT_OK(scheduler->Submit(WithLogProbs("a", 3000)));
  Effects effects;
  StepWithRows(scheduler.get(), &effects, 3000);
  std::vector<int32_t> firsts;
  int32_t num_rows = 0;
  for (const LogProbsEffect& effect : effects.logprobs) {
    if (!effect.of_prompt) continue;
    firsts.push_back(effect.logprobs.first_index);
    EXPECT_EQ(effect.logprobs.tokens[0], firsts.back());
    num_rows += effect.logprobs.num_rows();
  }
  EXPECT_THAT(firsts, ElementsAre(1, 1025, 2049));
  EXPECT_EQ(num_rows, 2999);
}

TEST(LogProbsTest, WrongOnesAreRefused) {
  SchedulerImpl scheduler(SmallLayout(4, 60), LogProbOptions());
  ASSERT_OK(scheduler.Submit(WithLogProbs("a", 4)));
  ASSERT_OK(scheduler.Submit(MakeRequest("b", 4, 5, 1)));
  StepPlan plan;
  ASSERT_TRUE(scheduler.Schedule(&plan));
  StepResult good = AnswerTo(plan);
  good.logprobs = {RowsOf(plan, 0, 4)};
  std::vector<WrongAnswer> cases = {
      {"logprobs[0].run: expected 0 to 1 (runs of the step, ascending), "
       "got 2",
       [](StepResult* r) { r->logprobs[0].run = 2; }},
      {"logprobs[1].run: expected 1 to 1 (runs of the step, ascending), "
       "got 0",
       [](StepResult* r) { r->logprobs.push_back(r->logprobs[0]); }},
      {"logprobs[0].prompt: expected none, as the request asks for none, "
       "got 6 tokens",
       [](StepResult* r) { r->logprobs[0].run = 1; }},
      {"logprobs[0].prompt.num_top: expected 1, as the request asks for 1, "
       "got 2",
       [](StepResult* r) { r->logprobs[0].prompt.num_top = 2; }},
      {"logprobs[0].prompt.num_top: expected 1, as the request asks for 1, "
       "got 0",
       [](StepResult* r) { r->logprobs[0].prompt.num_top = 0; }},
      {"logprobs[0].prompt.num_top: expected 1, as the request asks for 1, "
       "got -1",
       [](StepResult* r) { r->logprobs[0].prompt.num_top = -1; }},
      {"logprobs[0].prompt: expected 3 rows of 2 tokens and logprobs, got "
       "5 and 6",
       [](StepResult* r) { r->logprobs[0].prompt.tokens.pop_back(); }},
      {"logprobs[0].outputs: expected 1 rows of 1 tokens and logprobs, got "
       "1 and 0",
       [](StepResult* r) { r->logprobs[0].outputs.logprobs.clear(); }},
  };
  for (WrongAnswer& wrong : cases) wrong.is_whole = true;
  ExpectRefused(cases, good, &scheduler);
  // num_top means nothing where there are no rows.
  RunLogProbs& none = good.logprobs.emplace_back();
  none.run = 1;
  none.prompt.num_top = -1;
  none.outputs.num_top = std::numeric_limits<int32_t>::max();
  Effects effects;
  EXPECT_OK(scheduler.Update(good, &effects));
  EXPECT_THAT(effects.logprobs, SizeIs(2));
}

TEST(SchedulerUpdateTest, RefusesAnswersToNoStep) {
  SchedulerDriver driver(SmallLayout(4, 8), PlainOptions());
  Submit(&driver, MakeRequest("a", 4, 3));
  ASSERT_TRUE(driver.Issue());
  StepResult copy;
  driver.AnswerWith([&copy](StepResult* result) { copy = *result; });
  Effects effects;
  const uint64_t before = driver.scheduler().StateHash();
  EXPECT_THAT(driver.scheduler().Update(copy, &effects),
              IsInvalid("none is in flight"));
  EXPECT_EQ(driver.scheduler().StateHash(), before);
}

// The canary decodes all of a request's text again after every token, and the
// driver compares with the request alone.
TEST(StopStringTest, EndTheRequestWhateverIsInFlight) {
  const std::vector<std::string> all = {"caca", "abcab", "bbb", "ccc"};
  int32_t num_stopped = 0;
  int32_t num_requests = 0;
  uint64_t num_preemptions = 0;
  for (const int32_t max_steps_in_flight : {1, 2, 4}) {
    for (const int32_t num_speculative_tokens : {0, 5}) {
      SchedulerOptions options = CachingOptions(max_steps_in_flight);
      options.num_speculative_tokens = num_speculative_tokens;
      options.engine.sampling.fields = EngineSampling::kAllFields;
      // So few blocks that requests are preempted.
      SchedulerDriver driver(SmallLayout(4, 40), options,
                             {.vocabulary = 9,
                              .max_drafts = num_speculative_tokens,
                              .wrong_draft_one_in = 9});
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 12; ++i) {
        Request request = MakeRequest(std::to_string(i), 6, 40, i / 2);
        request.sampling = SamplingParams{
            .temperature = 0, .min_tokens = 5 * (i % 3), .stop = all};
        request.sampling->stop.resize(static_cast<size_t>(1 + i % 4));
        if (i % 2 == 1) request.fork_of = std::to_string(i - 1);
        // Also by a draft that is accepted before a string is complete.
        if (i % 3 == 0) request.stop_token_ids = {i % 9};
        ids.push_back(Submit(&driver, request));
      }
      driver.Finish();
      for (const RequestId id : ids) {
        num_stopped += driver.served(id).finish->stop.has_value() ? 1 : 0;
        ++num_requests;
      }
      num_preemptions += driver.scheduler().stats().num_preemptions;
    }
  }
  EXPECT_GT(num_preemptions, 0u);
  EXPECT_GT(num_stopped, num_requests / 4);
  EXPECT_LT(num_stopped, num_requests);
}

TEST(StopStringTest, AStopTokenCountsBeforeAString) {
  SchedulerOptions options = PlainOptions();
  options.engine.sampling.fields = EngineSampling::kAllFields;
  SchedulerDriver driver(SmallLayout(4, 20), options, {.vocabulary = 1});
  Request request = MakeRequest("a", 4, 9);
  request.sampling =
      SamplingParams{.temperature = 0, .stop = {CanaryEngine::TextOf(0)}};
  const RequestId by_string = Submit(&driver, request);
  request.id = "b";
  request.stop_token_ids = {0};
  const RequestId by_token = Submit(&driver, request);
  driver.Finish();
  EXPECT_EQ(driver.served(by_string).finish->reason, FinishReason::kStop);
  EXPECT_EQ(driver.served(by_string).finish->stop, 0);
  EXPECT_EQ(driver.served(by_token).finish->reason, FinishReason::kStop);
  EXPECT_EQ(driver.served(by_token).finish->stop, std::nullopt);
}

TEST(StopStringTest, MatchesThatCannotBeAreRefused) {
  SchedulerOptions options = PlainOptions();
  options.max_num_batched_tokens = 20;
  options.engine.sampling.fields = EngineSampling::kAllFields;
  SchedulerDriver driver(SmallLayout(4, 30), options);
  Request request = MakeRequest("a", 4, 9);
  request.sampling =
      SamplingParams{.temperature = 0, .stop = {"never", "ever"}};
  Submit(&driver, request);
  request = MakeRequest("b", 4, 9, 1);
  request.sampling =
      SamplingParams{.temperature = 0, .min_tokens = 1, .stop = {"never"}};
  Submit(&driver, request);
  Submit(&driver, MakeRequest("c", 4, 9, 2));
  Submit(&driver, MakeRequest("d", 20, 9, 3));  // a first chunk
  ASSERT_TRUE(driver.Issue());
  ASSERT_THAT(driver.plan().samples, ElementsAre(1, 1, 1, 0));
  const std::vector<std::pair<std::string, std::vector<StopMatch>>> cases = {
      {"stop_matches[0].run: expected 0 to 3", {{-1, 0}}},
      {"stop_matches[0].run: expected 0 to 3", {{4, 0}}},
      {"stop_matches[1].run: expected 1 to 3", {{0, 0}, {0, 0}}},
      {"stop_matches[0].stop: expected one of the request's 2 stop strings, "
       "got 2",
       {{0, 2}}},
      {"stop_matches[0].stop: expected one of the request's 2 stop strings, "
       "got -1",
       {{0, -1}}},
      {"stop_matches[0]: expected none in the first 1 outputs (min_tokens), "
       "got output 1",
       {{1, 0}}},
      {"stop_matches[0].stop: expected one of the request's 0 stop strings, "
       "got 0",
       {{2, 0}}},
      {"stop_matches[0]: expected none of run 3, as the run does not sample",
       {{3, 0}}},
  };
  std::vector<WrongAnswer> wrong;
  wrong.reserve(cases.size());
  for (const auto& one : cases) {
    wrong.push_back(
        {one.first, [&one](StepResult* r) { r->stop_matches = one.second; }});
  }
  driver.AnswerWith([&](StepResult* result) {
    ExpectRefused(wrong, *result, &driver.scheduler());
  });
  driver.Finish();
}

TEST(SchedulerUpdateTest, ReleasedBlocksWaitForTheStepsInFlight) {
  SchedulerDriver driver(SmallLayout(1, 10), PlainOptions(3));
  const RequestId a = Submit(&driver, MakeRequest("a", 4, 1));
  Submit(&driver, MakeRequest("b", 2, 4, 1));
  const RequestId c = Submit(&driver, MakeRequest("c", 6, 1, 2));
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.CountTokensInPlan(c), 0);
  const std::vector<BlockId> released = driver.BlocksInPlan(a);
  ASSERT_TRUE(driver.Issue());
  driver.Answer();
  ASSERT_TRUE(driver.served(a).finish.has_value());
  EXPECT_EQ(driver.scheduler().stats().blocks.fenced_blocks, 4);
  ASSERT_TRUE(driver.Issue());  // b alone: 10 - 4 fenced - 4 used
  EXPECT_EQ(driver.CountTokensInPlan(c), 0);
  for (const BlockId block : driver.plan().blocks) {
    EXPECT_THAT(released, testing::Not(testing::Contains(block)));
  }
  driver.Answer();
  EXPECT_EQ(driver.scheduler().stats().blocks.fenced_blocks, 0);
  driver.Finish();
}

class CommandTest : public testing::Test {
 protected:
  // Pages of one token; a request of 8 + 20 tokens with an output.
  void SetUp() override { driver_.Step(); }
  uint64_t Evict(EvictionCommand command) {
    const absl::StatusOr<uint64_t> number =
        driver_.Evict(id_, std::move(command));
    EXPECT_THAT(number, IsOk());
    return number.value_or(0);
  }
  const Served& served() const { return driver_.served(id_); }
  // Returns the effect of the only command that has been answered.
  EvictionEffect OnlyEffect() const {
    EXPECT_THAT(served().evictions, SizeIs(1));
    return served().evictions.empty() ? EvictionEffect()
                                      : served().evictions[0];
  }
  void Finish() {
    driver_.Finish();
    EXPECT_EQ(served().finish->reason, FinishReason::kLength);
  }

  SchedulerDriver driver_{SmallLayout(1, 60, 2, 2), PlainOptions(4)};
  const RequestId id_ = Submit(&driver_, MakeRequest("a", 8, 20));
};

TEST_F(CommandTest, IsCarriedOutWithTheNextStep) {
  const uint64_t number = Evict(RecencyCommand(3, 5));
  driver_.Step();
  const EvictionEffect effect = OnlyEffect();
  EXPECT_THAT(effect.status, IsOk());
  EXPECT_EQ(effect.command, number);
  EXPECT_EQ(effect.cut, 5);
  EXPECT_THAT(effect.kept_entries, SizeIs(4));
  EXPECT_GE(effect.freed_blocks, 2);
  const SchedulerStats stats = driver_.scheduler().stats();
  EXPECT_EQ(stats.num_evictions, 1);
  EXPECT_EQ(stats.evicted_entries, effect.evicted_entries);
  EXPECT_EQ(stats.evicted_blocks, effect.freed_blocks);
  EXPECT_EQ(stats.evicted_bytes, effect.freed_bytes);
  Finish();
}

TEST_F(CommandTest, WithoutACutTakesAllThereIs) {
  Evict(RecencyCommand(3));
  driver_.Step();
  ASSERT_THAT(driver_.plan().evictions, SizeIs(1));
  EXPECT_EQ(driver_.plan().evictions[0].length, 9);
  EXPECT_EQ(driver_.plan().evictions[0].cut, 8);
  Finish();
}

TEST_F(CommandTest, AsksForNoMoreQueriesThanThereAre) {
  EvictionCommand command = RecencyCommand(3);
  command.policy = SnapKv(100, 3).policy;
  Evict(command);
  driver_.Step();
  // Of 100 queries asked for the last 100 positions are protected, and the
  // engine has 4 (query_window): nothing can be freed.
  EXPECT_EQ(OnlyEffect().freed_blocks, 0);
  command.policy.protect.recent = 2;
  Evict(command);
  driver_.Step();
  ASSERT_THAT(driver_.plan().evictions, SizeIs(1));
  EXPECT_EQ(driver_.plan().evictions[0].policy.scorer.window, 4);
  EXPECT_EQ(driver_.plan().evictions[0].policy.protect.recent, 2);
  Finish();
}

TEST_F(CommandTest, ThatWouldFreeNothingIsAnsweredWithZero) {
  EvictionCommand command = RecencyCommand(100);
  const uint64_t number = Evict(command);
  driver_.Step();
  EXPECT_THAT(driver_.plan().evictions, IsEmpty());
  EXPECT_THAT(OnlyEffect().status, IsOk());
  EXPECT_EQ(OnlyEffect().command, number);
  EXPECT_EQ(OnlyEffect().freed_blocks, 0);
  EXPECT_EQ(OnlyEffect().evicted_entries, 0);
  Finish();
}

TEST_F(CommandTest, WithNoWholePageToCoverIsAnsweredWithZero) {
  SchedulerDriver driver(SmallLayout(16, 8), PlainOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 3, 5));
  driver.Step();
  EXPECT_THAT(driver.Evict(id, RecencyCommand(1)), IsOk());
  driver.Step();
  ASSERT_THAT(driver.served(id).evictions, SizeIs(1));
  EXPECT_THAT(driver.served(id).evictions[0].status, IsOk());
  EXPECT_EQ(driver.served(id).evictions[0].freed_blocks, 0);
  driver.Finish();
}

// It covers positions of steps in flight, which a loss takes away.
TEST_F(CommandTest, WaitsUntilARecomputedRequestIsLongEnough) {
  while (driver_.Issue()) {
  }
  const uint64_t number = Evict(RecencyCommand(3, 11));
  driver_.LoseEngine();
  EXPECT_THAT(served().evictions, IsEmpty());
  driver_.RunUntil([&] { return !served().evictions.empty(); });
  EXPECT_THAT(OnlyEffect().status, IsOk());
  EXPECT_EQ(OnlyEffect().command, number);
  EXPECT_EQ(OnlyEffect().cut, 11);
  EXPECT_THAT(served().recorded,
              ElementsAre(CanaryEviction{.length = 12, .cut = 11}));
  Finish();
}

TEST_F(CommandTest, IsAbortedWhenItsRequestEndsFirst) {
  const uint64_t number = Evict(RecencyCommand(3));
  EXPECT_THAT(driver_.Cancel(id_), IsOk());
  EXPECT_EQ(OnlyEffect().command, number);
  EXPECT_THAT(OnlyEffect().status, StatusIs(absl::StatusCode::kAborted));
  driver_.CheckQuiescent();
}

TEST_F(CommandTest, InFlightIsAnsweredOnceWhenItsRequestEnds) {
  Evict(RecencyCommand(3));
  ASSERT_TRUE(driver_.Issue());
  EXPECT_THAT(driver_.Cancel(id_), IsOk());
  EXPECT_THAT(served().evictions, IsEmpty());
  driver_.Answer();
  EXPECT_THAT(OnlyEffect().status, StatusIs(absl::StatusCode::kAborted));
  driver_.CheckQuiescent();
}

TEST_F(CommandTest, InFlightIsAbortedWhenTheEngineIsLost) {
  const uint64_t number = Evict(RecencyCommand(3));
  ASSERT_TRUE(driver_.Issue());
  driver_.LoseEngine();
  EXPECT_EQ(OnlyEffect().command, number);
  EXPECT_THAT(OnlyEffect().status, StatusIs(absl::StatusCode::kAborted));
  Finish();
  EXPECT_THAT(served().evictions, SizeIs(1));
}

}  // namespace
}  // namespace blockmgr
