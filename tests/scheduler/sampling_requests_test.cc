// What requests may ask of the engine's sampling, what the engine is told, and
// what the scheduler makes of it: ends, seeds, prefix hits.

#include "scheduler/sampling_requests.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kBadArgument = absl::StatusCode::kInvalidArgument;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using SpoilSampling = std::function<void(SamplingParams*)>;

EngineSampling Everything() {
  return {.fields = EngineSampling::kAllFields, .vocabulary_size = 100};
}

Request Sampled(const std::string& id, const SamplingParams& sampling,
                int32_t num_prompt = 6, int32_t max_tokens = 4) {
  Request request = MakeRequest(id, num_prompt, max_tokens);
  request.sampling = sampling;
  return request;
}

TEST(SamplingRequestsTest, NamesTheFieldThatIsOutOfItsRange) {
  const std::vector<std::pair<std::string, SpoilSampling>> cases = {
      {"temperature: expected 0 to 2, got -0.1",
       [](SamplingParams* s) { s->temperature = -0.1; }},
      {"temperature: expected 0 to 2, got 2.1",
       [](SamplingParams* s) { s->temperature = 2.1; }},
      {"temperature: expected 0 to 2, got nan",
       [](SamplingParams* s) { s->temperature = kNan; }},
      {"top_k: expected 0 to 2147483647, got -1",
       [](SamplingParams* s) { s->top_k = -1; }},
      {"top_p: expected above 0 and at most 1, got 0",
       [](SamplingParams* s) { s->top_p = 0; }},
      {"top_p: expected above 0 and at most 1, got 1.5",
       [](SamplingParams* s) { s->top_p = 1.5; }},
      {"top_p: expected above 0 and at most 1, got nan",
       [](SamplingParams* s) { s->top_p = kNan; }},
      {"min_p: expected 0 to 1, got 1.01",
       [](SamplingParams* s) { s->min_p = 1.01; }},
      {"repetition_penalty: expected above 0 and at most 2, got 0",
       [](SamplingParams* s) { s->repetition_penalty = 0; }},
      {"presence_penalty: expected -2 to 2, got 2.5",
       [](SamplingParams* s) { s->presence_penalty = 2.5; }},
      {"frequency_penalty: expected -2 to 2, got -3",
       [](SamplingParams* s) { s->frequency_penalty = -3; }},
      {"logit_bias: expected at most 1024, got 1025",
       [](SamplingParams* s) { s->logit_bias.resize(1025); }},
      {"logit_bias[1].token_id: expected a token id below 100 (the engine's "
       "vocabulary_size), got 100",
       [](SamplingParams* s) {
         s->logit_bias = {{99, 1}, {100, 1}};
       }},
      {"logit_bias[0].token_id: expected a token id of at least 0, got -1",
       [](SamplingParams* s) {
         s->logit_bias = {{-1, 1}};
       }},
      {"logit_bias[0].bias: expected -100 to 100, got 101",
       [](SamplingParams* s) {
         s->logit_bias = {{1, 101}};
       }},
      {"logit_bias[2].token_id: expected different tokens, got 4 twice",
       [](SamplingParams* s) {
         s->logit_bias = {{4, 1}, {5, 1}, {4, 1}};
       }},
      {"min_tokens: expected 0 to 4 (to max_tokens), got 5",
       [](SamplingParams* s) { s->min_tokens = 5; }},
      {"logprobs: expected 0 to 20, got 21",
       [](SamplingParams* s) { s->logprobs = 21; }},
      {"prompt_logprobs: expected 0 to 20, got -1",
       [](SamplingParams* s) { s->prompt_logprobs = -1; }},
      {"stop: expected at most 64, got 65",
       [](SamplingParams* s) { s->stop.assign(65, "a"); }},
      {"stop[1]: expected 1 to 256 bytes, got 0",
       [](SamplingParams* s) {
         s->stop = {"a", ""};
       }},
      {"stop[0]: expected 1 to 256 bytes, got 257",
       [](SamplingParams* s) { s->stop = {std::string(257, 'a')}; }},
  };
  for (const auto& [text, spoil] : cases) {
    Request request = Sampled("a", {});
    spoil(&*request.sampling);
    EXPECT_THAT(ValidateSampling(request, Everything()),
                StatusIs(kBadArgument, "sampling." + text));
  }
}

TEST(SamplingRequestsTest, NamesTheFieldThatTheEngineDoesNotSupport) {
  struct Case {
    SamplingField field;
    std::string text;
    SpoilSampling use;
  };
  const std::vector<Case> cases = {
      {SamplingField::kTemperature, "temperature: expected 0",
       [](SamplingParams* s) { s->temperature = 0.5; }},
      {SamplingField::kTopK, "top_k: expected 0",
       [](SamplingParams* s) { s->top_k = 1; }},
      {SamplingField::kTopP, "top_p: expected 1",
       [](SamplingParams* s) { s->top_p = 0.5; }},
      {SamplingField::kMinP, "min_p: expected 0",
       [](SamplingParams* s) { s->min_p = 0.5; }},
      {SamplingField::kRepetitionPenalty, "repetition_penalty: expected 1",
       [](SamplingParams* s) { s->repetition_penalty = 0.5; }},
      {SamplingField::kPresencePenalty, "presence_penalty: expected 0",
       [](SamplingParams* s) { s->presence_penalty = 0.5; }},
      {SamplingField::kFrequencyPenalty, "frequency_penalty: expected 0",
       [](SamplingParams* s) { s->frequency_penalty = 0.5; }},
      {SamplingField::kLogitBias, "logit_bias: expected none",
       [](SamplingParams* s) { s->logit_bias.resize(1); }},
      {SamplingField::kSeed, "seed: expected none",
       [](SamplingParams* s) { s->seed = 0; }},
      {SamplingField::kMinTokens, "min_tokens: expected 0",
       [](SamplingParams* s) { s->min_tokens = 1; }},
      {SamplingField::kLogprobs, "logprobs: expected none",
       [](SamplingParams* s) { s->logprobs = 0; }},
      {SamplingField::kPromptLogprobs, "prompt_logprobs: expected none",
       [](SamplingParams* s) { s->prompt_logprobs = 0; }},
      {SamplingField::kStop, "stop: expected none",
       [](SamplingParams* s) { s->stop = {"a"}; }},
  };
  EXPECT_THAT(cases, SizeIs(kNumSamplingFields));
  for (const Case& c : cases) {
    Request request = Sampled("a", {.temperature = 0});
    c.use(&*request.sampling);
    EngineSampling engine = Everything();
    EXPECT_OK(ValidateSampling(request, engine));
    engine.fields = EngineSampling::BitOf(c.field);
    EXPECT_OK(ValidateSampling(request, engine));
    engine.fields = EngineSampling::kAllFields & ~engine.fields;
    EXPECT_THAT(
        ValidateSampling(request, engine),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 testing::StartsWith("sampling." + c.text +
                                     ", as the engine does not support it")));
  }
}

TEST(SamplingRequestsTest, AnyEngineTakesGreedyRequests) {
  EXPECT_OK(ValidateSampling(MakeRequest("a", 3, 3), {}));
  EXPECT_OK(ValidateSampling(
      Sampled("a", {.temperature = 0, .ignore_eos = true}), {}));
  // At temperature 1, which is the default.
  EXPECT_THAT(ValidateSampling(Sampled("a", {}), {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "sampling.temperature: expected 0, as the engine does "
                       "not support it, got 1"));
}

TEST(SamplingRequestsTest, NamesWhatAnEngineAnnouncesWrongly) {
  const std::vector<std::pair<std::string, EngineSampling>> cases = {
      {"sampling_fields: expected numbers of 1 to 13, got others",
       {.fields = 1}},
      {"sampling_fields: expected numbers of 1 to 13, got others",
       {.fields = 1 << 14}},
      {"vocabulary_size: expected 0 to 2147483647, got -1",
       {.vocabulary_size = -1}},
      {"end_token_ids[1]: expected a token id below 50 (the engine's "
       "vocabulary_size), got 50",
       {.vocabulary_size = 50, .end_token_ids = {49, 50}}},
      {"end_token_ids.size(): expected 0 to 64, got 65",
       {.end_token_ids = std::vector<int32_t>(65)}},
  };
  for (const auto& [text, engine] : cases) {
    SchedulerOptions options = PlainOptions();
    options.engine.sampling = engine;
    EXPECT_THAT(options.Validate(), StatusIs(kBadArgument, text));
  }
}

TEST(SamplingRequestsTest, TokensAreInTheVocabularyIfItIsKnown) {
  EXPECT_OK(ValidateTokens("prompt", {0, 99}, 100));
  EXPECT_OK(ValidateTokens("prompt", {0, INT32_MAX}, 0));
  EXPECT_THAT(ValidateTokens("prompt", {0, -1}, 0),
              StatusIs(kBadArgument,
                       "prompt[1]: expected a token id of at least 0, got -1"));
  EXPECT_THAT(ValidateTokens("stop_token_ids", {5, 5, 100}, 100),
              StatusIs(kBadArgument,
                       "stop_token_ids[2]: expected a token id below 100 (the "
                       "engine's vocabulary_size), got 100"));
}

SchedulerOptions SamplingOptions() {
  SchedulerOptions options = PlainOptions();
  options.engine.sampling = Everything();
  return options;
}

TEST(SamplingSubmitTest, ChecksTheRequestAgainstTheEngine) {
  SchedulerDriver driver(SmallLayout(4, 30), SamplingOptions());
  Request request = Sampled("a", {.top_p = 1.5});
  EXPECT_THAT(driver.Submit(request),
              StatusIs(kBadArgument,
                       "sampling.top_p: expected above 0 and at most 1, got "
                       "1.5"));
  request = MakeRequest("a", 3, 3);
  request.prompt[2] = 100;
  EXPECT_THAT(driver.Submit(request),
              StatusIs(kBadArgument, testing::StartsWith("prompt[2]: ")));
  request = MakeRequest("a", 3, 3);
  request.stop_token_ids = {100};
  EXPECT_THAT(
      driver.Submit(request),
      StatusIs(kBadArgument, testing::StartsWith("stop_token_ids[0]: ")));
}

// A scheduler whose engine samples the same token for ever.
class Monotone {
 public:
  explicit Monotone(const SchedulerOptions& options)
      : scheduler_(*Scheduler::Create(SmallLayout(4, 60), options)) {}

  const RequestInfo& Submit(Request request) {
    const absl::StatusOr<RequestId> id = scheduler_->Submit(std::move(request));
    EXPECT_OK(id);
    StepPlan plan;
    EXPECT_TRUE(scheduler_->Schedule(&plan));
    infos_.push_back(plan.starts.at(0).info);
    EXPECT_OK(scheduler_->Update(AnswerTo(plan), &effects_));
    return *infos_.back();
  }
  // Returns how many outputs the request gets.
  size_t Serve(Request request) {
    Submit(std::move(request));
    StepPlan plan;
    while (scheduler_->Schedule(&plan)) {
      EXPECT_OK(scheduler_->Update(AnswerTo(plan), &effects_));
    }
    const size_t num_outputs = effects_.tokens.size();
    reason_ = effects_.finished.at(0).reason;
    effects_.Clear();
    return num_outputs;
  }
  FinishReason reason() const { return reason_; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::shared_ptr<const RequestInfo>> infos_;
  Effects effects_;
  FinishReason reason_ = FinishReason::kFailed;
};

TEST(SamplingEndTest, EndTokensEndARequestUnlessItIgnoresThem) {
  SchedulerOptions options = SamplingOptions();
  options.engine.sampling.end_token_ids = {9, 7};
  Monotone engine(options);
  EXPECT_EQ(engine.Serve(MakeRequest("a", 3, 5)), 1u);
  EXPECT_EQ(engine.reason(), FinishReason::kStop);
  EXPECT_EQ(engine.Serve(Sampled("a", {.ignore_eos = true}, 3, 5)), 5u);
  EXPECT_EQ(engine.reason(), FinishReason::kLength);
  // What the request names itself is no end token.
  Request request = Sampled("a", {.ignore_eos = true}, 3, 5);
  request.stop_token_ids = {7};
  EXPECT_EQ(engine.Serve(request), 1u);
}

TEST(SamplingEndTest, NothingStopsARequestBeforeMinTokens) {
  SchedulerOptions options = SamplingOptions();
  options.engine.sampling.end_token_ids = {7};
  Monotone engine(options);
  for (const int32_t min_tokens : {1, 2, 4}) {
    EXPECT_EQ(engine.Serve(Sampled("a", {.min_tokens = min_tokens}, 3, 5)),
              static_cast<size_t>(min_tokens) + 1);
    EXPECT_EQ(engine.reason(), FinishReason::kStop);
  }
  EXPECT_EQ(engine.Serve(Sampled("a", {.min_tokens = 5}, 3, 5)), 5u);
  EXPECT_EQ(engine.reason(), FinishReason::kLength);
}

TEST(SamplingEndTest, ANewEngineMayDoMore) {
  const ModelLayout layout = SmallLayout(4, 60);
  SchedulerOptions options = SamplingOptions();
  options.engine.sampling = {};
  const auto scheduler = Scheduler::Create(layout, options);
  ASSERT_OK(scheduler);
  const Request greedy = MakeRequest("a", 3, 5);
  const Request sampled = Sampled("b", {.top_k = 4});
  ASSERT_OK((*scheduler)->Submit(greedy));
  EXPECT_THAT((*scheduler)->Submit(sampled),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  Effects effects;
  (*scheduler)->LoseEngine(&effects);
  options.engine.sampling.fields = EngineSampling::kAllFields;
  (*scheduler)->TakeAbilities(options.engine);
  EXPECT_OK((*scheduler)->Submit(sampled));
  EXPECT_OK((*scheduler)->Find("a"));
  (*scheduler)->CheckInvariants();
}

TEST(SamplingInfoTest, TheEngineIsToldWhatItNeeds) {
  SchedulerOptions options = SamplingOptions();
  options.engine.sampling.end_token_ids = {50, 7};
  Monotone engine(options);
  EXPECT_EQ(engine.Submit(MakeRequest("a", 3, 5)).sampling, std::nullopt);
  SamplingParams params{.top_k = 4, .seed = -3, .logprobs = 2, .stop = {"x"}};
  Request request = Sampled("b", params);
  request.stop_token_ids = {8, 7};
  const RequestInfo& plain = engine.Submit(request);
  EXPECT_EQ(plain.sampling, params);
  EXPECT_THAT(plain.stop_token_ids, IsEmpty());
  request.id = "c";
  request.sampling->min_tokens = 1;
  EXPECT_THAT(engine.Submit(request).stop_token_ids, ElementsAre(7, 8, 50));
  request.id = "d";
  request.sampling->ignore_eos = true;
  EXPECT_THAT(engine.Submit(request).stop_token_ids, ElementsAre(7, 8, 50));
}

TEST(SamplingInfoTest, SeedsAreDrawnOncePerRequestFromTheOptions) {
  SchedulerOptions options = SamplingOptions();
  std::vector<int64_t> seeds;
  for (const uint64_t sampling_seed : {0, 1}) {
    options.sampling_seed = sampling_seed;
    for (int repeat = 0; repeat < 2; ++repeat) {
      Monotone engine(options);
      seeds.push_back(*engine.Submit(Sampled("a", {})).sampling->seed);
      seeds.push_back(*engine.Submit(Sampled("b", {})).sampling->seed);
    }
  }
  EXPECT_EQ(seeds[0], seeds[2]);
  EXPECT_EQ(seeds[1], seeds[3]);
  EXPECT_NE(seeds[0], seeds[1]);
  EXPECT_NE(seeds[0], seeds[4]);
  EXPECT_NE(seeds[1], seeds[5]);
}

// All of its prompt is computed, once; what it has computed before a
// preemption may come from the cache.
TEST(PromptLogprobsTest, TakeNoPrefixHit) {
  SchedulerOptions options = CachingOptions();
  options.engine.sampling = {.fields = EngineSampling::kAllFields};
  SchedulerDriver driver(SmallLayout(4, 60), options);
  Submit(&driver, MakeRequest("a", 21, 2));
  driver.Drain();
  const RequestId hit = Submit(&driver, MakeRequest("b", 21, 2));
  driver.Drain();
  EXPECT_EQ(driver.served(hit).finish->num_cached_tokens, 20);
  const RequestId id =
      Submit(&driver, Sampled("c", {.prompt_logprobs = 0}, 21, 9));
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 0);
  driver.Answer();
  // A fork shares nothing of its parent.
  Request request = Sampled("d", {.prompt_logprobs = 0}, 21, 2);
  request.fork_of = "c";
  const RequestId fork = Submit(&driver, request);
  ASSERT_TRUE(driver.Issue());
  ASSERT_NE(driver.StartInPlan(fork), nullptr);
  EXPECT_EQ(driver.StartInPlan(fork)->num_cached_tokens, 0);
  EXPECT_EQ(driver.StartInPlan(fork)->source, kNoSequenceSlot);
  driver.Finish();
  EXPECT_EQ(driver.served(id).finish->num_cached_tokens, 0);
}

}  // namespace
}  // namespace blockmgr
