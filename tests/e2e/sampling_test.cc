// Requests with SamplingParams through daemon and engine.

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSamplingSeed = 31;

// In a pool so small that some are preempted.
LineOptions SamplingLine() {
  return {.model = SmallModel(kSamplingSeed),
          .num_blocks = 21,
          .page_size = 16,
          .scheduler = SmallScheduler(true, 4),
          .max_drafts = 0};
}

v1::SubmitRequest MakeSampled(const std::string& id,
                              const std::vector<int32_t>& prompt,
                              const std::optional<SamplingParams>& sampling) {
  v1::SubmitRequest request = Line::MakeRequest(id, prompt, 40);
  if (sampling.has_value()) ToProto(*sampling, request.mutable_sampling());
  return request;
}

TEST(SamplingLineTest, TokensAreThoseOfTheRequestAlone) {
  SCOPED_TRACE(absl::StrCat("seed ", kSamplingSeed));
  std::mt19937_64 random(kSamplingSeed);
  const std::vector<std::optional<SamplingParams>> kinds = {
      std::nullopt, SamplingParams{.seed = 5},
      SamplingParams{.temperature = 0.7,
                     .top_k = 10,
                     .repetition_penalty = 1.2,
                     .seed = 6,
                     .min_tokens = 3},
      SamplingParams{.top_p = 0.9,
                     .min_p = 0.01,
                     .frequency_penalty = 0.5,
                     .logit_bias = {{7, -100}},
                     .seed = 7}};
  std::vector<v1::SubmitRequest> requests;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 16; ++i) {
    prompts.push_back(RandomTokens(20 + 3 * static_cast<int32_t>(i), &random));
    requests.push_back(
        MakeSampled(absl::StrCat(i), prompts.back(), kinds[i % kinds.size()]));
  }
  const Served served = Serve(SamplingLine(), requests);
  EXPECT_GE(served.stats.num_preemptions(), 3u);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> alone;
    RunAlone(SamplingLine(), prompts[i], 40, &alone, kinds[i % kinds.size()]);
    EXPECT_EQ(served.answers.at(absl::StrCat(i)).tokens, alone)
        << "request " << i;
  }
}

TEST(SamplingLineTest, TheDaemonDrawsASeedForWhoHasNone) {
  std::mt19937_64 random(kSamplingSeed);
  const std::vector<int32_t> prompt = RandomTokens(30, &random);
  // Each by a daemon of its own.
  std::vector<std::vector<int32_t>> outputs;
  for (int i = 0; i < 2; ++i) {
    const Served served =
        Serve(SamplingLine(), {MakeSampled("a", prompt, SamplingParams{})});
    outputs.push_back(served.answers.at("a").tokens);
  }
  EXPECT_NE(outputs[0], outputs[1]);
}

TEST(SamplingLineTest, LogProbsOfEveryTokenArrive) {
  std::mt19937_64 random(kSamplingSeed);
  // Two chunks, of which the first samples nothing.
  const std::vector<int32_t> prompt = RandomTokens(100, &random);
  Line line(SamplingLine());
  line.Open();
  // This request leaves blocks in the cache, which later ones do not take.
  ASSERT_TRUE(line.Submit(MakeSampled("before", prompt, std::nullopt)).ok());
  line.WaitForAnswers(1);
  ASSERT_TRUE(line.Submit(MakeSampled("a", prompt,
                                      SamplingParams{.temperature = 0,
                                                     .logprobs = 2,
                                                     .prompt_logprobs = 1}))
                  .ok());
  const Answer answer = line.WaitForAnswers(2).at("a");
  line.Close();
  EXPECT_EQ(answer.num_cached_tokens, 0);
  ASSERT_EQ(answer.tokens.size(), 40u);
  const auto tokens_of = [](const std::vector<v1::TokenLogProbs>& pieces,
                            int32_t first, int32_t num_top) {
    std::vector<int32_t> tokens;
    for (const v1::TokenLogProbs& rows : pieces) {
      EXPECT_EQ(rows.first_index(), first + std::ssize(tokens));
      EXPECT_EQ(rows.num_top(), num_top);
      EXPECT_EQ(rows.token_ids_size(), rows.logprobs_size());
      for (int i = 0; i < rows.token_ids_size(); i += 1 + num_top) {
        tokens.push_back(static_cast<int32_t>(rows.token_ids(i)));
        EXPECT_LE(rows.logprobs(i), rows.logprobs(i + 1));
      }
    }
    return tokens;
  };
  EXPECT_EQ(tokens_of(answer.logprobs, 0, 2), answer.tokens);
  EXPECT_GE(answer.prompt_logprobs.size(), 2u);
  EXPECT_EQ(tokens_of(answer.prompt_logprobs, 1, 1),
            std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
}

TEST(SamplingLineTest, RefusalsNameTheField) {
  std::mt19937_64 random(kSamplingSeed);
  const std::vector<int32_t> prompt = RandomTokens(30, &random);
  Line line(SamplingLine());
  line.Open();
  const std::vector<
      std::pair<std::string, std::function<void(v1::SubmitRequest*)>>>
      cases = {
          {"sampling.top_p: expected above 0 and at most 1, got 1.5",
           [](v1::SubmitRequest* r) { r->mutable_sampling()->set_top_p(1.5); }},
          {"sampling.logit_bias[0].token_id: expected a token id below 64 (the "
           "engine's vocabulary_size), got 64",
           [](v1::SubmitRequest* r) {
             r->mutable_sampling()->add_logit_bias()->set_token_id(64);
           }},
          {"prompt_token_ids[30]: expected a token id below 64",
           [](v1::SubmitRequest* r) { r->add_prompt_token_ids(70); }},
      };
  for (const auto& [text, spoil] : cases) {
    v1::SubmitRequest request = MakeSampled("a", prompt, std::nullopt);
    spoil(&request);
    const grpc::Status status = line.Submit(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }
  line.Close();
}

}  // namespace
}  // namespace blockmgr
