// Drafts in plans and answers.

#include <algorithm>
#include <cstdint>
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
using ::testing::Pair;

SchedulerOptions DraftOptions(int32_t num_speculative_tokens,
                              int32_t max_steps_in_flight = 1) {
  SchedulerOptions options = PlainOptions(max_steps_in_flight);
  options.num_speculative_tokens = num_speculative_tokens;
  return options;
}

// An engine whose answers say what the test wants: it samples what a request
// alone does, and accepts so many of the drafts of every run.
class Speculation {
 public:
  Speculation(const ModelLayout& layout, const SchedulerOptions& options)
      : scheduler_(layout, options) {}

  SchedulerImpl& scheduler() { return scheduler_; }
  const StepPlan& plan() const { return plan_; }
  const Effects& effects() const { return effects_; }
  RequestId Submit(const Request& request) {
    const absl::StatusOr<RequestId> id = scheduler_.Submit(request);
    EXPECT_THAT(id, IsOk());
    return id.value_or(RequestId{0});
  }
  bool Issue() {
    const bool issued = scheduler_.Schedule(&plan_);
    scheduler_.CheckInvariants();
    return issued;
  }
  // Drafts of plan().
  int32_t num_drafts(size_t run = 0) const {
    return plan_.num_drafts.empty() ? 0 : plan_.num_drafts[run];
  }
  // Answers plan(): every run that samples accepts `num_accepted` drafts at
  // most, has `num_ready` new ones, and says something if it is not empty.
  void Answer(int32_t num_accepted, int32_t num_ready,
              const std::string& data = "") {
    StepResult result = Result(num_accepted, num_ready);
    if (!data.empty()) result.token_data.assign(result.sampled.size(), data);
    Answer(result);
  }
  // Issues a step and answers it.
  void Step(int32_t num_accepted, int32_t num_ready,
            const std::string& data = "") {
    ASSERT_TRUE(Issue());
    Answer(num_accepted, num_ready, data);
  }
  // Answers a step that was issued before.
  void Answer(const StepResult& result) {
    effects_.Clear();
    EXPECT_THAT(scheduler_.Update(result, &effects_), IsOk());
    scheduler_.CheckInvariants();
  }
  StepResult Result(int32_t num_accepted, int32_t num_ready) const {
    StepResult result;
    result.id = plan_.id;
    for (size_t i = 0; i < plan_.slots.size(); ++i) {
      const bool samples = plan_.samples[i] != 0;
      result.sampled.push_back(samples ? kSampled : -1);
      result.num_accepted.push_back(std::min(num_accepted, num_drafts(i)));
      result.accepted.insert(result.accepted.end(), result.num_accepted.back(),
                             kAccepted);
      result.num_drafts.push_back(samples ? num_ready : 0);
    }
    return result;
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> tokens;
    for (const TokenEffect& effect : effects_.tokens) {
      tokens.push_back(effect.token);
    }
    return tokens;
  }
  const SequenceCache& sequence(int32_t slot) const {
    return scheduler_.manager().sequence(SequenceSlot{slot});
  }

  static constexpr int32_t kSampled = 5000;
  static constexpr int32_t kAccepted = 4000;

 private:
  SchedulerImpl scheduler_;
  StepPlan plan_;
  Effects effects_;
};

constexpr int32_t kSampled = Speculation::kSampled;
constexpr int32_t kAccepted = Speculation::kAccepted;

TEST(SpeculationTest, ARunComputesTheLastTokenAndTheDrafts) {
  Speculation engine(SmallLayout(4, 20), DraftOptions(3));
  engine.Submit(MakeRequest("a", 6, 30));
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  engine.Answer(0, 5);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().positions, ElementsAre(6));
  EXPECT_THAT(engine.plan().num_tokens, ElementsAre(4));
  EXPECT_THAT(engine.plan().num_drafts, ElementsAre(3));
  EXPECT_THAT(engine.plan().samples, ElementsAre(1));
  EXPECT_EQ(engine.plan().blocks.size(), 1u);  // positions 8 and 9
  engine.Answer(3, 2);
  EXPECT_THAT(engine.tokens(),
              ElementsAre(kAccepted, kAccepted, kAccepted, kSampled));
  EXPECT_EQ(engine.effects().tokens.back().index, 4);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().positions, ElementsAre(10));
  EXPECT_THAT(engine.plan().num_drafts, ElementsAre(2));
  const SchedulerStats stats = engine.scheduler().stats();
  EXPECT_EQ(stats.num_draft_tokens, 3u);
  EXPECT_EQ(stats.num_accepted_tokens, 3u);
  EXPECT_EQ(stats.num_output_tokens, 5u);
}

TEST(SpeculationTest, WhatARunSaysGoesWithItsFirstToken) {
  Speculation engine(SmallLayout(4, 20), DraftOptions(3));
  engine.Submit(MakeRequest("a", 6, 30));
  const auto said = [&engine] {
    std::vector<std::pair<int32_t, std::string>> all;
    for (const TokenDataEffect& effect : engine.effects().token_data) {
      all.emplace_back(effect.index, effect.data);
    }
    return all;
  };
  engine.Step(0, 5, "of one");
  EXPECT_THAT(said(), ElementsAre(Pair(0, "of one")));
  engine.Step(2, 5, "of three");
  EXPECT_THAT(said(), ElementsAre(Pair(1, "of three")));
  engine.Step(0, 5);
  EXPECT_THAT(said(), IsEmpty());
  engine.Step(0, 0, "again");
  EXPECT_THAT(said(), ElementsAre(Pair(5, "again")));
}

TEST(SpeculationTest, RejectedDraftsGiveTheirBlocksBack) {
  Speculation engine(SmallLayout(2, 20), DraftOptions(7));
  engine.Submit(MakeRequest("a", 6, 30));
  engine.Step(0, 7);
  ASSERT_TRUE(engine.Issue());
  EXPECT_EQ(engine.sequence(0).num_reserved, 14);
  EXPECT_EQ(engine.sequence(0).first().tail.size(), 7u);
  engine.Answer(2, 1);
  EXPECT_THAT(engine.tokens(), ElementsAre(kAccepted, kAccepted, kSampled));
  EXPECT_EQ(engine.sequence(0).num_reserved, 9);
  EXPECT_EQ(engine.sequence(0).num_settled, 9);
  EXPECT_EQ(engine.sequence(0).first().tail.size(), 5u);
  EXPECT_EQ(engine.scheduler().stats().blocks.used_blocks, 5);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().positions, ElementsAre(9));
  const SchedulerStats stats = engine.scheduler().stats();
  EXPECT_EQ(stats.num_draft_tokens, 7u);
  EXPECT_EQ(stats.num_accepted_tokens, 2u);
  EXPECT_EQ(stats.num_computed_tokens, 9u);
}

TEST(SpeculationTest, OffByDefaultWhateverTheEngineHas) {
  Speculation engine(SmallLayout(4, 20), DraftOptions(0, 2));
  engine.Submit(MakeRequest("a", 6, 8));
  engine.Step(0, 5);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  EXPECT_TRUE(engine.Issue());  // ahead
}

// The engine's report decides, answer by answer.
TEST(SpeculationTest, StepsComeOneByOneWhileThereAreDrafts) {
  Speculation engine(SmallLayout(4, 40), DraftOptions(2, 3));
  engine.Submit(MakeRequest("a", 6, 30));
  engine.Step(0, 1);
  ASSERT_TRUE(engine.Issue());
  EXPECT_EQ(engine.num_drafts(), 1);
  EXPECT_FALSE(engine.Issue());
  engine.Answer(0, 0);
  ASSERT_TRUE(engine.Issue());
  const StepResult first = engine.Result(0, 2);
  ASSERT_TRUE(engine.Issue());
  const StepResult second = engine.Result(0, 2);
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  // Drafts behind a token that is not the last: nothing new before that.
  engine.Answer(first);
  EXPECT_FALSE(engine.Issue());
  engine.Answer(second);
  ASSERT_TRUE(engine.Issue());
  EXPECT_EQ(engine.num_drafts(), 2);
}

// Else the two would run in batches of their own from then on.
TEST(SpeculationTest, NobodyRunsAheadOfOneWhoHasDrafts) {
  Speculation engine(SmallLayout(4, 40), DraftOptions(2, 3));
  engine.Submit(MakeRequest("a", 6, 30));
  engine.Submit(MakeRequest("b", 6, 30, 1));
  ASSERT_TRUE(engine.Issue());
  StepResult result = engine.Result(0, 0);
  result.num_drafts = {2, 0};
  engine.Answer(result);
  for (int32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine.Issue());
    EXPECT_THAT(engine.plan().num_tokens, ElementsAre(3, 1));
    engine.Submit(MakeRequest("c" + std::to_string(i), 3, 1, 2));
    EXPECT_FALSE(engine.Issue());
    result = engine.Result(1, 0);
    result.num_drafts = {2, 0};
    result.num_drafts.resize(engine.plan().slots.size());
    engine.Answer(result);
    // c's only step.
    ASSERT_TRUE(engine.Issue());
    EXPECT_THAT(engine.plan().num_tokens, ElementsAre(3, 1, 3));
    result = engine.Result(1, 0);
    result.num_drafts = {2, 0, 0};
    engine.Answer(result);
  }
}

TEST(SpeculationTest, NeverBeyondTheLastInput) {
  Speculation engine(SmallLayout(4, 20), DraftOptions(8));
  engine.Submit(MakeRequest("a", 6, 5));
  engine.Step(0, 8);
  ASSERT_TRUE(engine.Issue());
  EXPECT_EQ(engine.num_drafts(), 3);
  engine.Answer(8, 8);
  EXPECT_EQ(engine.effects().tokens.size(), 4u);
  ASSERT_EQ(engine.effects().finished.size(), 1u);
  EXPECT_EQ(engine.effects().finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(engine.effects().finished[0].num_output_tokens, 5);
}

TEST(SpeculationTest, NothingAfterAStopTokenIsTold) {
  for (const int32_t stop : {kAccepted, kSampled}) {
    Speculation engine(SmallLayout(4, 20), DraftOptions(4));
    Request request = MakeRequest("a", 6, 30);
    request.stop_token_ids = {stop};
    engine.Submit(request);
    ASSERT_TRUE(engine.Issue());
    StepResult prompt = engine.Result(0, 4);
    prompt.sampled = {7};
    engine.Answer(prompt);
    engine.Step(2, 4);
    if (stop == kAccepted) {
      EXPECT_THAT(engine.tokens(), ElementsAre(kAccepted));
    } else {
      EXPECT_THAT(engine.tokens(), ElementsAre(kAccepted, kAccepted, kSampled));
    }
    ASSERT_EQ(engine.effects().finished.size(), 1u);
    EXPECT_EQ(engine.effects().finished[0].reason, FinishReason::kStop);
    EXPECT_EQ(engine.scheduler().stats().num_output_tokens,
              1 + engine.tokens().size());
    EXPECT_EQ(engine.scheduler().stats().blocks.used_blocks, 0);
  }
}

// Compressions of prompt + 8k: the run that ends there has no drafts.
TEST(SpeculationTest, NeverToACompressionPoint) {
  Speculation engine(SmallLayout(4, 40), DraftOptions(6));
  Request request = MakeRequest("a", 8, 60);
  request.eviction = Recency(4, EvictionMode::kDecode, 8);
  engine.Submit(request);
  int32_t num_points = 0;
  int32_t num_drafted = 0;
  while (engine.Issue()) {
    const int32_t end =
        engine.plan().positions[0] + engine.plan().num_tokens[0];
    if (engine.num_drafts() > 0) {
      ++num_drafted;
      EXPECT_NE(engine.plan().positions[0] % 8, 7);
      EXPECT_LE(end, engine.plan().positions[0] / 8 * 8 + 7);
    }
    StepResult result = engine.Result(6, 6);
    for (const EvictionOrder& order : engine.plan().evictions) {
      EXPECT_EQ(order.length, end);
      EXPECT_EQ(order.length % 8, 0);
      ++num_points;
      result.evictions.push_back({.ok = true, .error = {}, .counts = {4}});
    }
    engine.Answer(result);
  }
  EXPECT_EQ(num_points, 7);  // at 16, 24, .. 64
  EXPECT_EQ(num_drafted, 8);
}

TEST(SpeculationTest, ARunWithACommandHasNone) {
  Speculation engine(SmallLayout(4, 40), DraftOptions(4));
  const RequestId id = engine.Submit(MakeRequest("a", 16, 30));
  engine.Step(0, 4);
  ASSERT_TRUE(engine.Issue());  // positions 16 to 20
  // The drafts in flight may be void tomorrow.
  EXPECT_THAT(engine.scheduler().Evict(id, RecencyCommand(4, 20)),
              IsInvalid("cut"));
  ASSERT_THAT(engine.scheduler().Evict(id, RecencyCommand(4)), IsOk());
  engine.Answer(1, 4);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  ASSERT_EQ(engine.plan().evictions.size(), 1u);
  EXPECT_EQ(engine.plan().evictions[0].length, 19);
}

TEST(SpeculationTest, AccumulatedScoresLeaveNoWayBack) {
  SchedulerOptions options = DraftOptions(4, 2);
  options.engine.num_scorer_states = 2;
  Speculation engine(SmallLayout(4, 40), options);
  Request request = MakeRequest("a", 20, 30);
  request.eviction = Recency(8);
  request.eviction.policy.scorer.kind = ScorerKind::kH2o;
  engine.Submit(request);
  ASSERT_TRUE(engine.Issue());
  ASSERT_EQ(engine.plan().starts[0].scorer_state, ScorerState::kAttentionSums);
  StepResult result = engine.Result(0, 4);
  result.evictions.push_back({.ok = true, .error = {}, .counts = {8}});
  engine.Answer(result);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  EXPECT_TRUE(engine.Issue());  // ahead
}

TEST(SpeculationTest, TakesOnlyTheTokensThatTheStepHasLeft) {
  SchedulerOptions options = DraftOptions(4);
  options.max_num_batched_tokens = 12;
  Speculation engine(SmallLayout(4, 40), options);
  engine.Submit(MakeRequest("a", 5, 30));
  engine.Submit(MakeRequest("b", 5, 30, 1));
  engine.Step(0, 9);
  // A third one's prompt is in the middle.
  engine.Submit(MakeRequest("c", 23, 4, 2));
  ASSERT_TRUE(engine.Issue());
  // Half of what is left, for somebody waits.
  EXPECT_THAT(engine.plan().num_drafts, ElementsAre(4, 1, 0));
  EXPECT_THAT(engine.plan().num_tokens, ElementsAre(5, 2, 5));
  engine.Answer(0, 9);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_tokens, ElementsAre(1, 1, 10));
  EXPECT_THAT(engine.plan().num_drafts, IsEmpty());
  engine.Answer(0, 9);
  ASSERT_TRUE(engine.Issue());  // 8 of the third are left
  engine.Answer(0, 9);
  ASSERT_TRUE(engine.Issue());
  EXPECT_THAT(engine.plan().num_tokens, ElementsAre(5, 5, 2));
}

// The blocks that the running ones need until the step is over are theirs.
TEST(SpeculationTest, TakesNoBlockThatOthersWillNeed) {
  Speculation engine(SmallLayout(4, 6), DraftOptions(8));
  engine.Submit(MakeRequest("a", 7, 5));
  engine.Submit(MakeRequest("b", 8, 5, 1));
  engine.Step(0, 8);
  ASSERT_TRUE(engine.Issue());
  // b's third block and, a step later, a's are the last two.
  EXPECT_THAT(engine.plan().num_tokens, ElementsAre(1, 4));
  EXPECT_THAT(engine.plan().num_drafts, ElementsAre(0, 3));
  engine.Answer(0, 8);
  while (engine.Issue()) engine.Answer(1, 8);
  EXPECT_EQ(engine.scheduler().stats().num_preemptions, 0u);
  EXPECT_EQ(engine.scheduler().stats().num_finished, 2u);
}

TEST(SpeculationTest, OnlyWhatIsVerifiedIsPublished) {
  SchedulerOptions options = DraftOptions(8);
  options.enable_prefix_caching = true;
  Speculation engine(SmallLayout(4, 20), options);
  engine.Submit(MakeRequest("a", 6, 30));
  engine.Step(0, 8);
  ASSERT_TRUE(engine.Issue());
  // Six prompt tokens, one output, and the drafts: three blocks are full.
  EXPECT_EQ(engine.sequence(0).num_published, 1);
  engine.Answer(2, 0);
  EXPECT_EQ(engine.sequence(0).num_settled, 9);
  EXPECT_EQ(engine.sequence(0).num_published, 2);
  Effects effects;
  EXPECT_THAT(engine.scheduler().Cancel(RequestId{1}, &effects), IsOk());
  Request later = MakeRequest("b", 6, 4);
  later.prompt.insert(later.prompt.end(),
                      {kSampled, kAccepted, kAccepted, kSampled, 1, 2, 3});
  engine.Submit(later);
  ASSERT_TRUE(engine.Issue());
  EXPECT_EQ(engine.plan().starts[0].num_cached_tokens, 8);
}

TEST(SpeculationTest, AnswersAreChecked) {
  Speculation engine(SmallLayout(4, 40), DraftOptions(3));
  engine.Submit(MakeRequest("a", 6, 30));
  engine.Step(0, 3);
  engine.Submit(MakeRequest("b", 100, 30, 1));
  ASSERT_TRUE(engine.Issue());
  ASSERT_THAT(engine.plan().num_drafts, ElementsAre(3, 0));
  ASSERT_THAT(engine.plan().samples, ElementsAre(1, 0));
  const std::vector<WrongAnswer> cases = {
      {"num_accepted: expected none or 2 numbers, got 1",
       [](StepResult* r) { r->num_accepted.pop_back(); }},
      {"num_accepted[0]: expected 0 to 3",
       [](StepResult* r) { r->num_accepted[0] = 4; }},
      {"num_accepted[1]: expected 0 to 0",
       [](StepResult* r) { r->num_accepted[1] = 1; }},
      {"num_accepted[0]: expected 0 to 3",
       [](StepResult* r) { r->num_accepted[0] = -1; }},
      {"accepted: expected 2 tokens",
       [](StepResult* r) { r->accepted.push_back(1); }},
      {"accepted: expected 0 tokens",
       [](StepResult* r) { r->num_accepted.clear(); }},
      {"accepted[1]: expected 0", [](StepResult* r) { r->accepted[1] = -1; }},
      {"num_drafts: expected none or 2 numbers, got 3",
       [](StepResult* r) { r->num_drafts.push_back(0); }},
      {"num_drafts[0]: expected at least 0",
       [](StepResult* r) { r->num_drafts[0] = -1; }},
      {"num_drafts[1]: expected 0, as the run does not sample",
       [](StepResult* r) { r->num_drafts[1] = 1; }},
  };
  ExpectRefused(cases, engine.Result(2, 3), &engine.scheduler());
  // None at all: no draft was accepted, none is ready.
  StepResult result = engine.Result(0, 0);
  result.num_accepted.clear();
  result.num_drafts.clear();
  Effects effects;
  engine.Answer(result);
  EXPECT_EQ(engine.sequence(0).num_reserved, 7);
}

// With an engine whose every slot tells who wrote it: forks, losses,
// preemptions and compressions of requests that speculate. The parameter: steps
// in flight.
class SpeculationDriverTest : public testing::TestWithParam<int32_t> {
 protected:
  static CanaryOptions Drafts(int32_t wrong_draft_one_in = 3) {
    CanaryOptions canary;
    canary.vocabulary = 4;
    canary.max_drafts = 5;
    canary.wrong_draft_one_in = wrong_draft_one_in;
    return canary;
  }
  static void Finish(SchedulerDriver* driver) {
    driver->Finish();
    const SchedulerStats stats = driver->scheduler().stats();
    EXPECT_GT(stats.num_accepted_tokens, 0u);
    EXPECT_GT(stats.num_draft_tokens, stats.num_accepted_tokens);
  }
};

// Both go on from what is settled; the drafts in flight are nobody else's.
TEST_P(SpeculationDriverTest, ForksOfASpeculatingParent) {
  SchedulerDriver driver(SmallLayout(4, 60), DraftOptions(5, GetParam()),
                         Drafts());
  const RequestId parent = Submit(&driver, MakeRequest("a", 10, 40));
  for (int32_t i = 0; i < 6; ++i) driver.Step();
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(driver.Issue());
    Request fork = MakeRequest("f" + std::to_string(i), 10, 30);
    fork.fork_of = "a";
    const std::vector<int32_t>& outputs = driver.served(parent).outputs;
    fork.prompt.insert(fork.prompt.end(), outputs.begin(), outputs.end() - i);
    Submit(&driver, fork);
    while (driver.ok() && driver.engine().num_queued() > 0) driver.Answer();
  }
  Finish(&driver);
  EXPECT_EQ(driver.scheduler().stats().num_forks, 3u);
}

TEST_P(SpeculationDriverTest, LosesBlocksInAStepWithDrafts) {
  SchedulerDriver driver(SmallLayout(2, 60), DraftOptions(5, GetParam()),
                         Drafts());
  const RequestId id = Submit(&driver, MakeRequest("a", 9, 60));
  for (int32_t i = 0; i < 12; ++i) {
    if (!driver.Issue()) continue;
    const SequenceCache& sequence =
        driver.scheduler().manager().sequence(driver.SlotOf(id));
    if (i % 3 == 0) driver.engine().LoseBlocks({sequence.first().tail.back()});
    if (i % 3 == 1) driver.engine().LoseBlocks({sequence.first().tail.front()});
    driver.Answer();
  }
  Finish(&driver);
  EXPECT_GT(driver.scheduler().stats().num_cut_requests, 4u);
}

TEST_P(SpeculationDriverTest, IsPreemptedCancelledAndLost) {
  SchedulerDriver driver(SmallLayout(2, 30), DraftOptions(5, GetParam()),
                         Drafts());
  for (int32_t i = 0; i < 4; ++i) {
    Submit(&driver, MakeRequest(std::to_string(i), 6, 40, i));
  }
  for (int32_t i = 0; i < 10; ++i) driver.Step();
  ASSERT_TRUE(driver.Issue());
  EXPECT_THAT(driver.Cancel(RequestId{2}), IsOk());
  driver.Answer();
  ASSERT_TRUE(driver.Issue());
  driver.LoseEngine();
  Finish(&driver);
  EXPECT_GT(driver.scheduler().stats().num_preemptions, 0u);
}

TEST_P(SpeculationDriverTest, CompressesAtTheSameLengthsAsWithout) {
  std::vector<std::vector<CanaryEviction>> recorded;
  for (const int32_t num_speculative_tokens : {0, 5}) {
    SchedulerDriver driver(SmallLayout(4, 60),
                           DraftOptions(num_speculative_tokens, GetParam()),
                           Drafts());
    Request request = MakeRequest("a", 18, 70);
    request.eviction = SnapKv(3, 8);
    request.eviction.mode = EvictionMode::kDecode;
    request.eviction.compress_every = 12;
    const RequestId id = Submit(&driver, request);
    driver.Finish();
    recorded.push_back(driver.served(id).recorded);
  }
  EXPECT_EQ(recorded[0].size(), 6u);
  EXPECT_EQ(recorded[1], recorded[0]);
}

TEST_P(SpeculationDriverTest, NeedsFewerSteps) {
  std::vector<uint64_t> num_steps;
  for (const int32_t num_speculative_tokens : {0, 5}) {
    SchedulerDriver driver(SmallLayout(4, 60),
                           DraftOptions(num_speculative_tokens, GetParam()),
                           Drafts(20));
    Submit(&driver, MakeRequest("a", 18, 100));
    driver.Finish();
    num_steps.push_back(driver.scheduler().stats().num_steps);
  }
  EXPECT_EQ(num_steps[0], 100u);
  EXPECT_LT(num_steps[1], 60u);
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SpeculationDriverTest,
                         testing::Values(1, 2, 4));

}  // namespace
}  // namespace blockmgr
