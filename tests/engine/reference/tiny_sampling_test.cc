// A request's tokens follow from its prompt, parameters and seed: the same ones
// come alone and in a batch, after preemptions and swaps, on prefix hits, in a
// fork, and with drafts.

#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_engine.h"
#include "scheduler/scheduler.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

constexpr int32_t kSmallVocabulary = 64;

struct SamplingSetting {
  int32_t num_blocks = 200;
  int32_t num_host_blocks = 0;
  int32_t num_speculative_tokens = 0;
  int32_t max_steps_in_flight = 1;
  int32_t chunk = 64;
  bool enable_prefix_caching = false;
};

// The answer to one request.
struct SampledAnswer {
  std::vector<int32_t> tokens;
  std::optional<int32_t> stop;  // FinishEffect::stop
  TokenLogProbs prompt;
  TokenLogProbs outputs;

  friend bool operator==(const SampledAnswer&, const SampledAnswer&) = default;
};

struct SamplingOutcome {
  std::map<uint64_t, SampledAnswer> requests;
  SchedulerStats stats;
};

void AppendRows(const TokenLogProbs& piece, TokenLogProbs* all) {
  if (all->tokens.empty()) {
    *all = piece;
    return;
  }
  EXPECT_EQ(piece.num_top, all->num_top);
  EXPECT_EQ(piece.first_index, all->first_index + all->num_rows());
  all->tokens.insert(all->tokens.end(), piece.tokens.begin(),
                     piece.tokens.end());
  all->logprobs.insert(all->logprobs.end(), piece.logprobs.begin(),
                       piece.logprobs.end());
}

// Token 8 * i + j is "ij", and those from 56 on add nothing.
TokenTexts SmallTexts() {
  TokenTexts texts(kSmallVocabulary);
  for (int32_t i = 0; i < 56; ++i) {
    texts[static_cast<size_t>(i)] = absl::StrCat(i / 8, i % 8);
  }
  return texts;
}

SamplingOutcome ServeSampled(const SamplingSetting& setting,
                             const std::vector<Request>& requests) {
  const auto model = SmallModel(7);
  const ModelLayout layout =
      MakeLayout(model->shape(), 8, DType::kFloat32, setting.num_blocks);
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends =
      CreateCpuShards(layout);
  EXPECT_OK(backends);
  for (const auto& backend : *backends) backend->Poison();
  TinyEngine engine(model, layout, *std::move(backends),
                    {.max_sequences = 8,
                     .num_host_blocks = setting.num_host_blocks,
                     .max_drafts = setting.num_speculative_tokens,
                     .token_texts = SmallTexts()});
  SchedulerOptions options = PlainOptions();
  options.num_speculative_tokens = setting.num_speculative_tokens;
  options.max_steps_in_flight = setting.max_steps_in_flight;
  options.engine.num_host_blocks = setting.num_host_blocks;
  options.long_prefill_token_threshold = setting.chunk;
  options.enable_prefix_caching = setting.enable_prefix_caching;
  options.engine.sampling = {.fields = EngineSampling::kAllFields,
                             .vocabulary_size = kSmallVocabulary};
  const std::unique_ptr<Scheduler> scheduler =
      *Scheduler::Create(layout, options);
  for (const Request& request : requests) {
    EXPECT_OK(scheduler->Submit(request));
  }
  std::deque<StepResult> answers;
  Effects effects;
  StepPlan plan;
  while (scheduler->has_unfinished_requests()) {
    while (scheduler->Schedule(&plan)) {
      EXPECT_OK(engine.Run(plan, &answers.emplace_back()));
    }
    EXPECT_OK(scheduler->Update(answers.front(), &effects));
    answers.pop_front();
  }
  SamplingOutcome run;
  for (const TokenEffect& effect : effects.tokens) {
    run.requests[Index(effect.request)].tokens.push_back(effect.token);
  }
  for (const LogProbsEffect& effect : effects.logprobs) {
    SampledAnswer& got = run.requests[Index(effect.request)];
    AppendRows(effect.logprobs, effect.of_prompt ? &got.prompt : &got.outputs);
  }
  for (const FinishEffect& effect : effects.finished) {
    run.requests[Index(effect.request)].stop = effect.stop;
  }
  run.stats = scheduler->stats();
  return run;
}

// Returns requests of all kinds: with every field that changes a distribution,
// and greedy ones.
std::vector<Request> SampledRequests() {
  const std::vector<std::optional<SamplingParams>> kinds = {
      SamplingParams{.seed = 1, .logprobs = 3},
      SamplingParams{.temperature = 0.7,
                     .top_k = 12,
                     .repetition_penalty = 1.3,
                     .seed = 2,
                     .logprobs = 0,
                     .prompt_logprobs = 2},
      std::nullopt,
      SamplingParams{.top_p = 0.8,
                     .presence_penalty = 0.5,
                     .frequency_penalty = -0.4,
                     .seed = 3},
      SamplingParams{.temperature = 0,
                     .frequency_penalty = 1.0,
                     .min_tokens = 20,
                     .prompt_logprobs = 0},
      SamplingParams{.temperature = 0.3,
                     .min_p = 0.05,
                     .logit_bias = {{3, 1.5}, {9, -100}},
                     .seed = 3},
  };
  std::mt19937_64 random(3);
  std::vector<Request> requests;
  for (size_t i = 0; i < kinds.size(); ++i) {
    Request request;
    request.id = absl::StrCat(i);
    request.prompt = RandomTokens(25 + 7 * static_cast<int32_t>(i),
                                  kSmallVocabulary, &random);
    request.max_tokens = 50;
    request.sampling = kinds[i];
    requests.push_back(request);
  }
  requests[4].stop_token_ids = {1, 5, 8, 13, 21, 34, 55};
  return requests;
}

// Returns the answer of each request if it runs alone.
std::map<uint64_t, SampledAnswer> ServeAlone(
    const std::vector<Request>& requests) {
  std::map<uint64_t, SampledAnswer> alone;
  for (size_t i = 0; i < requests.size(); ++i) {
    alone[i + 1] = ServeSampled({}, {requests[i]}).requests.at(1);
  }
  return alone;
}

TEST(TinySamplingTest, TokensAreTheSameAloneAndInABatch) {
  const std::vector<Request> requests = SampledRequests();
  const std::map<uint64_t, SampledAnswer> alone = ServeAlone(requests);
  for (const int32_t chunk : {64, 7}) {
    for (const int32_t max_steps_in_flight : {1, 4}) {
      const SamplingOutcome run = ServeSampled(
          {.max_steps_in_flight = max_steps_in_flight, .chunk = chunk},
          requests);
      EXPECT_EQ(run.requests, alone);
    }
  }
  // Other seeds would bring others.
  Request other = requests[0];
  other.sampling->seed = 4;
  EXPECT_NE(ServeSampled({}, {other}).requests.at(1).tokens,
            alone.at(1).tokens);
  EXPECT_GE(alone.at(5).tokens.size(), 21u);
}

TEST(TinySamplingTest, TokensAreTheSameAfterPreemptionsAndSwaps) {
  const std::vector<Request> requests = SampledRequests();
  const std::map<uint64_t, SampledAnswer> alone = ServeAlone(requests);
  for (const int32_t num_host_blocks : {0, 100}) {
    for (const bool enable_prefix_caching : {false, true}) {
      const SamplingOutcome run =
          ServeSampled({.num_blocks = 30,
                        .num_host_blocks = num_host_blocks,
                        .max_steps_in_flight = 2,
                        .enable_prefix_caching = enable_prefix_caching},
                       requests);
      EXPECT_EQ(run.requests, alone);
      EXPECT_GE(run.stats.num_preemptions, 3u);
      EXPECT_EQ(run.stats.num_swap_ins > 0, num_host_blocks > 0);
    }
  }
}

TEST(TinySamplingTest, TokensAreTheSameWithDrafts) {
  // Peaked and repetitive, so that some drafts are right.
  std::vector<Request> requests = SampledRequests();
  for (Request& request : requests) {
    if (!request.sampling.has_value()) continue;
    request.sampling->temperature *= 0.1;
    request.sampling->frequency_penalty = -0.5;
  }
  const std::map<uint64_t, SampledAnswer> alone = ServeAlone(requests);
  for (const int32_t num_speculative_tokens : {1, 4}) {
    const SamplingOutcome run = ServeSampled(
        {.num_speculative_tokens = num_speculative_tokens}, requests);
    EXPECT_EQ(run.requests, alone);
    EXPECT_GT(run.stats.num_accepted_tokens, 20u);
    EXPECT_GT(run.stats.num_draft_tokens, run.stats.num_accepted_tokens);
  }
}

// How much of an answer without stop strings is left with them, and which one
// ends it. Decodes everything after every token.
SampledAnswer CutAtStop(const std::vector<int32_t>& tokens,
                        const SamplingParams& params) {
  const TokenTexts texts = SmallTexts();
  SampledAnswer cut;
  std::string text;
  for (const int32_t token : tokens) {
    const size_t before = text.size();
    text += texts[static_cast<size_t>(token)];
    cut.tokens.push_back(token);
    if (std::ssize(cut.tokens) <= params.min_tokens) continue;
    for (size_t i = 0; i < params.stop.size() && !cut.stop.has_value(); ++i) {
      const size_t last = text.rfind(params.stop[i]);
      if (last != std::string::npos && last + params.stop[i].size() > before) {
        cut.stop = static_cast<int32_t>(i);
      }
    }
    if (cut.stop.has_value()) break;
  }
  return cut;
}

TEST(TinySamplingTest, StopStringsEndARequestWhereItsTextHasOne) {
  std::vector<Request> requests;
  std::vector<SampledAnswer> expected;
  size_t num_stopped = 0;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = SampledRequests()[0];
    request.id = absl::StrCat(i);
    request.prompt[0] = i;
    // Half of them are peaked and repetitive, for drafts to be right.
    request.sampling = SamplingParams{.seed = i};
    if (i % 2 == 1) {
      request.sampling->temperature = 0.1;
      request.sampling->frequency_penalty = -0.5;
    }
    const std::vector<int32_t> tokens =
        ServeSampled({}, {request}).requests.at(1).tokens;
    request.sampling->stop = {"007",   "21", "345",
                              "64206", "51", absl::StrCat("6", 10 + i)};
    request.sampling->min_tokens = i % 3 * 10;
    requests.push_back(request);
    expected.push_back(CutAtStop(tokens, *request.sampling));
    num_stopped += expected.back().stop.has_value() ? 1 : 0;
  }
  ASSERT_GT(num_stopped, 4u);
  uint64_t num_accepted = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_swap_ins = 0;
  for (const SamplingSetting& setting :
       {SamplingSetting{}, SamplingSetting{.max_steps_in_flight = 4},
        SamplingSetting{.num_blocks = 30, .max_steps_in_flight = 2},
        SamplingSetting{.num_blocks = 30, .num_host_blocks = 100},
        SamplingSetting{.num_speculative_tokens = 4}}) {
    const SamplingOutcome run = ServeSampled(setting, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(run.requests.at(i + 1), expected[i]) << "request " << i;
    }
    num_accepted += run.stats.num_accepted_tokens;
    num_preemptions += run.stats.num_preemptions;
    num_swap_ins += run.stats.num_swap_ins;
  }
  EXPECT_GT(num_accepted, 20u);
  EXPECT_GT(num_preemptions, 0u);
  EXPECT_GT(num_swap_ins, 0u);
}

TEST(TinySamplingTest, ForksDifferByTheirSeedsOnly) {
  Request parent = SampledRequests()[0];
  const std::vector<int32_t> expected =
      ServeSampled({}, {parent}).requests.at(1).tokens;
  Request twin = parent;
  twin.id = "twin";
  twin.fork_of = parent.id;
  Request sibling = twin;
  sibling.id = "sibling";
  sibling.sampling->seed = 1000;
  // Goes on from the middle of the parent's output.
  Request beam = twin;
  beam.id = "beam";
  beam.prompt.insert(beam.prompt.end(), expected.begin(),
                     expected.begin() + 10);
  beam.max_tokens -= 10;
  SamplingOutcome run = ServeSampled({}, {parent, twin, sibling, beam});
  EXPECT_GT(run.stats.num_forks, 0u);
  EXPECT_EQ(run.requests.at(1).tokens, expected);
  EXPECT_EQ(run.requests.at(2), run.requests.at(1));
  EXPECT_NE(run.requests.at(3).tokens, expected);
  EXPECT_EQ(run.requests.at(4).tokens,
            std::vector<int32_t>(expected.begin() + 10, expected.end()));
  // A request without a seed gets one of its own.
  parent.sampling->seed = twin.sampling->seed = std::nullopt;
  run = ServeSampled({}, {parent, twin});
  EXPECT_NE(run.requests.at(1).tokens, run.requests.at(2).tokens);
}

// In float64, by an independent forward pass.
TEST(TinySamplingTest, LogProbsAreTheModels) {
  const std::vector<Request> requests = SampledRequests();
  const auto model = SmallModel(7);
  const SamplingOutcome run = ServeSampled({.chunk = 9}, requests);
  for (const size_t i : {size_t{0}, size_t{1}, size_t{4}}) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    const SampledAnswer& got = run.requests.at(i + 1);
    std::vector<int32_t> tokens = requests[i].prompt;
    const size_t num_prompt = tokens.size();
    tokens.insert(tokens.end(), got.tokens.begin(), got.tokens.end());
    DenseReference reference(model.get());
    const SamplingParams& params = *requests[i].sampling;
    EXPECT_EQ(got.prompt.num_rows(),
              params.prompt_logprobs ? num_prompt - 1 : 0);
    EXPECT_EQ(got.outputs.num_rows(), params.logprobs ? got.tokens.size() : 0);
    for (size_t p = 1; p < tokens.size(); ++p) {
      const std::vector<double> logits = reference.Forward(tokens[p - 1]);
      const bool of_prompt = p < num_prompt;
      const TokenLogProbs& rows = of_prompt ? got.prompt : got.outputs;
      if (rows.tokens.empty()) continue;
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      const size_t row = of_prompt ? p - 1 : p - num_prompt;
      const size_t width = size_t{1} + static_cast<size_t>(rows.num_top);
      ASSERT_EQ(rows.tokens[row * width], tokens[p]);
      for (size_t j = row * width; j < (row + 1) * width; ++j) {
        EXPECT_NEAR(rows.logprobs[j],
                    logits[static_cast<size_t>(rows.tokens[j])] - std::log(sum),
                    1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
