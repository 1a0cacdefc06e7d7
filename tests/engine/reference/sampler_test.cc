#include "engine/reference/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

RequestInfo InfoWith(const SamplingParams& params, int32_t num_prompt = 1) {
  RequestInfo info;
  info.num_prompt_tokens = num_prompt;
  info.sampling = params;
  return info;
}

// In float64, with sorts.
class SamplerReference {
 public:
  SamplerReference(const RequestInfo& info, std::span<const int32_t> tokens,
                   std::span<const float> logits)
      : params_(*info.sampling), logits_(logits.begin(), logits.end()) {
    Adjust(info, tokens);
    Filter();
  }

  // The probabilities of all tokens, summed up to and with `token`.
  double CumulativeOf(int32_t token) const {
    return std::accumulate(probabilities_.begin(),
                           probabilities_.begin() + token + 1, 0.0);
  }
  const std::vector<double>& probabilities() const { return probabilities_; }
  int32_t Greedy() const {
    return static_cast<int32_t>(std::ranges::max_element(logits_) -
                                logits_.begin());
  }

 private:
  void Adjust(const RequestInfo& info, std::span<const int32_t> tokens) {
    const std::span<const int32_t> outputs =
        tokens.subspan(static_cast<size_t>(info.num_prompt_tokens));
    for (size_t i = 0; i < logits_.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      double& logit = logits_[i];
      if (std::ssize(outputs) < params_.min_tokens &&
          std::ranges::count(info.stop_token_ids, token) > 0) {
        logit = -kInfinity;
      }
      for (const LogitBias& bias : params_.logit_bias) {
        if (bias.token == token) logit += bias.bias;
      }
      if (std::ranges::count(tokens, token) > 0) {
        logit = logit > 0 ? logit / params_.repetition_penalty
                          : logit * params_.repetition_penalty;
      }
      const auto count =
          static_cast<double>(std::ranges::count(outputs, token));
      logit -= params_.frequency_penalty * count;
      if (count > 0) logit -= params_.presence_penalty;
    }
  }

  void Filter() {
    const double max = *std::ranges::max_element(logits_);
    std::vector<int32_t> order(logits_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [this](int32_t a, int32_t b) {
      return logits_[static_cast<size_t>(a)] > logits_[static_cast<size_t>(b)];
    });
    probabilities_.assign(logits_.size(), 0.0);
    if (params_.temperature == 0) return;
    const auto weight = [&](int32_t token) {
      return std::exp((logits_[static_cast<size_t>(token)] - max) /
                      params_.temperature);
    };
    std::erase_if(order,
                  [&](int32_t token) { return weight(token) < params_.min_p; });
    if (params_.top_k > 0 && std::ssize(order) > params_.top_k) {
      order.resize(static_cast<size_t>(params_.top_k));
    }
    double total = 0;
    for (const int32_t token : order) total += weight(token);
    double before = 0;
    double kept = 0;
    for (const int32_t token : order) {
      // With all of top_p, rounding leaves out nothing.
      if (params_.top_p < 1 && before >= params_.top_p * total) break;
      probabilities_[static_cast<size_t>(token)] = weight(token);
      before += weight(token);
      kept = before;
    }
    for (double& probability : probabilities_) probability /= kept;
  }

  const SamplingParams params_;
  std::vector<double> logits_;
  std::vector<double> probabilities_;
};

// The number in [0, 1) for a token behind so many.
double UniformOf(int64_t seed, size_t num_tokens) {
  const uint64_t bits =
      SplitMix64(SplitMix64(static_cast<uint64_t>(seed)) + num_tokens);
  return std::ldexp(static_cast<double>(bits >> 11), -53);
}

struct SamplerProblem {
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  RequestInfo info;
};

// Logits on a grid have many ties; exp of the others differs.
SamplerProblem RandomSamplerProblem(std::mt19937_64* random) {
  const auto below = [random](uint64_t limit) { return (*random)() % limit; };
  const auto pick = [&](std::initializer_list<double> values) {
    return values.begin()[below(values.size())];
  };
  SamplerProblem problem;
  const int32_t vocabulary =
      std::vector<int32_t>{1, 7, 64, 300, 1000}[below(5)];
  const bool has_ties = below(2) == 0;
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int32_t i = 0; i < vocabulary; ++i) {
    const float logit = normal(*random);
    problem.logits.push_back(has_ties ? std::round(2.0f * logit) / 2.0f
                                      : logit);
  }
  const auto token = [&] {
    return static_cast<int32_t>(below(static_cast<uint64_t>(vocabulary)));
  };
  const size_t length = 1 + below(40);
  for (size_t i = 0; i < length; ++i) problem.tokens.push_back(token());
  problem.info.num_prompt_tokens = static_cast<int32_t>(1 + below(length));
  SamplingParams& params = problem.info.sampling.emplace();
  params.temperature = pick({0, 0.5, 1, 2});
  params.top_k = static_cast<int32_t>(pick({0, 0, 1, 5, 50, 5000}));
  params.top_p = pick({1, 1, 0.01, 0.37, 0.9});
  params.min_p = pick({0, 0, 0.013, 0.31});
  params.repetition_penalty = pick({1, 1, 0.5, 1.25});
  params.presence_penalty = pick({0, 0, 1.5, -0.5});
  params.frequency_penalty = pick({0, 0, 0.5, -1.5});
  if (below(2) == 0) params.logit_bias = {{token(), 3.5}};
  params.seed = static_cast<int64_t>((*random)());
  params.min_tokens = static_cast<int32_t>(below(30));
  // Some tokens are left to choose from.
  if (vocabulary > 1) problem.info.stop_token_ids = {0};
  return problem;
}

TEST(SamplerTest, ChoosesWhatTheReferenceDoes) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  for (int32_t i = 0; i < 2000; ++i) {
    SCOPED_TRACE(absl::StrCat("problem ", i));
    const SamplerProblem problem = RandomSamplerProblem(&random);
    Sampler sampler(static_cast<int32_t>(problem.logits.size()));
    const SamplerReference reference(problem.info, problem.tokens,
                                     problem.logits);
    const int32_t token =
        sampler.Sample(&problem.info, problem.tokens, problem.logits);
    if (problem.info.sampling->temperature == 0) {
      ASSERT_EQ(token, reference.Greedy());
      continue;
    }
    const double probability =
        reference.probabilities()[static_cast<size_t>(token)];
    ASSERT_GT(probability, 0);
    const double uniform =
        UniformOf(*problem.info.sampling->seed, problem.tokens.size());
    const double end = reference.CumulativeOf(token);
    ASSERT_LE(uniform, end + 1e-5);
    ASSERT_GE(uniform, end - probability - 1e-5);
  }
}

TEST(SamplerTest, ScratchOfOneCallDoesNotReachTheNext) {
  std::mt19937_64 random(5);
  Sampler used(64);
  for (int32_t i = 0; i < 500; ++i) {
    const SamplerProblem problem = RandomSamplerProblem(&random);
    if (problem.logits.size() != 64) continue;
    Sampler fresh(64);
    EXPECT_EQ(used.Sample(&problem.info, problem.tokens, problem.logits),
              fresh.Sample(&problem.info, problem.tokens, problem.logits));
  }
}

// Pearson's statistic of counts; a tail of 1e-4 begins at 29.9 with 7 degrees
// of freedom.
double ChiSquare(const std::vector<int32_t>& counts,
                 const std::vector<double>& probabilities) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probabilities[i];
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

constexpr double kChiSquareLimit = 29.9;
const std::vector<float> kEight = {0.5f, -1.0f, 2.0f,  0.0f,
                                   1.5f, 1.0f,  -0.5f, 2.5f};

TEST(SamplerTest, FrequenciesOverSeedsAreTheProbabilities) {
  RequestInfo info = InfoWith({.temperature = 0.8});
  const std::vector<int32_t> tokens = {3};
  Sampler sampler(8);
  std::vector<int32_t> counts(8);
  for (int64_t seed = 0; seed < 20000; ++seed) {
    info.sampling->seed = seed;
    ++counts[static_cast<size_t>(sampler.Sample(&info, tokens, kEight))];
  }
  const SamplerReference reference(info, tokens, kEight);
  EXPECT_LT(ChiSquare(counts, reference.probabilities()), kChiSquareLimit);
}

TEST(SamplerTest, FrequenciesOverPositionsAreTheProbabilities) {
  const RequestInfo info = InfoWith({.top_p = 0.9, .min_p = 0.06, .seed = 77});
  const std::vector<int32_t> tokens(20001, 3);
  Sampler sampler(8);
  std::vector<int32_t> counts(8);
  std::vector<int32_t> pairs(64);  // a token and the one after it
  int32_t last = 0;
  for (size_t length = 1; length < tokens.size(); ++length) {
    const int32_t token =
        sampler.Sample(&info, std::span(tokens).first(length), kEight);
    ++counts[static_cast<size_t>(token)];
    if (length > 1) {
      ++pairs[size_t{8} * static_cast<size_t>(last) +
              static_cast<size_t>(token)];
    }
    last = token;
  }
  const SamplerReference reference(info, std::span(tokens).first(1), kEight);
  const std::vector<double>& single = reference.probabilities();
  EXPECT_LT(ChiSquare(counts, single), kChiSquareLimit);
  std::vector<double> both;
  for (const double a : single) {
    for (const double b : single) both.push_back(a * b);
  }
  // At most 63 degrees of freedom: a tail of 1e-4 begins at 111.
  EXPECT_LT(ChiSquare(pairs, both), 111.0);
}

TEST(SamplerTest, WithoutParametersIsGreedyAndTheLowestTokenWins) {
  Sampler sampler(6);
  const std::vector<int32_t> tokens = {0};
  const std::vector<float> logits = {1, 3, 2, 3, -1, 3};
  EXPECT_EQ(sampler.Sample(nullptr, tokens, logits), 1);
  RequestInfo info;
  EXPECT_EQ(sampler.Sample(&info, tokens, logits), 1);
  info = InfoWith({.temperature = 0});
  EXPECT_EQ(sampler.Sample(&info, tokens, logits), 1);
  for (int64_t seed = 0; seed < 50; ++seed) {
    info = InfoWith({.top_k = 1, .seed = seed});
    EXPECT_EQ(sampler.Sample(&info, tokens, logits), 1);
    info = InfoWith({.top_p = 1e-9, .seed = seed});
    EXPECT_EQ(sampler.Sample(&info, tokens, logits), 1);
    info = InfoWith({.temperature = 2e-5, .top_k = 2, .seed = seed});
    EXPECT_THAT(sampler.Sample(&info, tokens, logits), AnyOf(1, 3));
  }
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreNeverChosen) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Sampler sampler(5);
  const std::vector<int32_t> tokens = {0};
  const std::vector<float> logits = {kNan, 1.0f, kNever, 0.5f, kNan};
  EXPECT_EQ(sampler.Sample(nullptr, tokens, logits), 1);
  for (int64_t seed = 0; seed < 200; ++seed) {
    const RequestInfo info =
        InfoWith({.top_k = 4, .top_p = 0.99, .seed = seed});
    EXPECT_THAT(sampler.Sample(&info, tokens, logits), AnyOf(1, 3));
  }
  const RequestInfo info = InfoWith({});
  const std::vector<float> none(5, kNever);
  EXPECT_EQ(sampler.Sample(&info, tokens, none), 0);
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreTheLeastLikely) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Sampler sampler(3);
  TokenLogProbs rows{.num_top = 1};
  sampler.AddLogProbs(std::vector<float>{kNan, 1, 2}, 1, &rows);
  EXPECT_THAT(rows.tokens, ElementsAre(1, 2));
  rows = {.num_top = 3};
  sampler.AddLogProbs(std::vector<float>{kNan, 1, kNan}, 1, &rows);
  EXPECT_THAT(rows.tokens, ElementsAre(1, 1, 0, 2));
}

TEST(SamplerTest, TokensBeyondTheVocabularyCountForNothing) {
  Sampler sampler(3);
  const std::vector<float> logits = {1, 2, 3};
  RequestInfo info = InfoWith({.temperature = 0,
                               .repetition_penalty = 2,
                               .frequency_penalty = 2,
                               .logit_bias = {{1000000, 100}, {-1, 100}},
                               .min_tokens = 9});
  info.stop_token_ids = {3, 1000000};
  const std::vector<int32_t> tokens = {5, -7, 3, 1000000};
  EXPECT_EQ(sampler.Sample(&info, tokens, logits), 2);
}

TEST(SamplerTest, StopTokensAreOutOfReachUntilMinTokens) {
  Sampler sampler(4);
  RequestInfo info = InfoWith({.temperature = 0, .min_tokens = 2}, 2);
  info.stop_token_ids = {1, 3};
  const std::vector<float> logits = {0, 5, 1, 9};
  const std::vector<int32_t> tokens = {0, 0, 2, 2, 2};
  const auto sample = [&](size_t num_outputs) {
    return sampler.Sample(&info, std::span(tokens).first(2 + num_outputs),
                          logits);
  };
  EXPECT_EQ(sample(0), 2);
  EXPECT_EQ(sample(1), 2);
  EXPECT_EQ(sample(2), 3);
}

TEST(SamplerLogProbsTest, AreThoseOfTheLogits) {
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (const int32_t vocabulary : {1, 5, 64, 1000}) {
    Sampler sampler(vocabulary);
    std::vector<float> logits;
    double sum = 0;
    for (int32_t i = 0; i < vocabulary; ++i) {
      logits.push_back(normal(random));
      sum += std::exp(static_cast<double>(logits.back()));
    }
    for (const int32_t num_top : {0, 1, 5, 20}) {
      if (num_top > vocabulary) continue;
      TokenLogProbs rows{.num_top = num_top};
      sampler.AddLogProbs(logits, vocabulary / 2, &rows);
      sampler.AddLogProbs(logits, 0, &rows);
      ASSERT_EQ(rows.num_rows(), 2);
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, std::greater<>(), [&](int32_t token) {
        return logits[static_cast<size_t>(token)];
      });
      order.resize(static_cast<size_t>(num_top));
      order.insert(order.begin(), vocabulary / 2);
      ASSERT_EQ(std::vector<int32_t>(rows.tokens.begin(),
                                     rows.tokens.begin() + 1 + num_top),
                order);
      ASSERT_EQ(rows.tokens[order.size()], 0);
      for (size_t i = 0; i < rows.tokens.size(); ++i) {
        const auto token = static_cast<size_t>(rows.tokens[i]);
        EXPECT_NEAR(rows.logprobs[i],
                    static_cast<double>(logits[token]) - std::log(sum), 2e-6);
      }
    }
  }
}

TEST(SamplerLogProbsTest, OfEqualTokensTheLowerOnesComeFirst) {
  Sampler sampler(6);
  const std::vector<float> logits = {1, 3, 2, 3, 2, 3};
  TokenLogProbs rows{.num_top = 4};
  sampler.AddLogProbs(logits, 5, &rows);
  EXPECT_THAT(rows.tokens, ElementsAre(5, 1, 3, 5, 2));
}

TEST(SamplerLogProbsTest, ATokenBeyondTheVocabularyIsImpossible) {
  Sampler sampler(2);
  TokenLogProbs rows;
  sampler.AddLogProbs(std::vector<float>{1, 2}, 2, &rows);
  EXPECT_THAT(rows.logprobs, ElementsAre(-kInfinity));
}

// A device applies the edits, then draws: naively here.
int32_t DrawPlanned(const RowDraw& draw, const std::vector<LogitEdit>& edits,
                    std::vector<float> logits) {
  for (const LogitEdit& edit : edits) {
    EXPECT_EQ(edit.row, draw.row);
    float& logit = logits[static_cast<size_t>(edit.token)];
    logit += edit.bias;
    logit = logit > 0 ? logit / edit.repetition : logit * edit.repetition;
    logit -= edit.penalty;
  }
  const auto best = std::ranges::max_element(logits);
  if (draw.inverse_temperature == 0.0f) {
    return static_cast<int32_t>(best - logits.begin());
  }
  std::vector<double> sums;
  for (const float logit : logits) {
    const float x = (logit - *best) * draw.inverse_temperature;
    const double weight = x < draw.min_exponent ? 0.0 : std::exp(double{x});
    sums.push_back(weight + (sums.empty() ? 0.0 : sums.back()));
  }
  return static_cast<int32_t>(
      std::ranges::upper_bound(sums, draw.uniform * sums.back()) -
      sums.begin());
}

TEST(SamplerTest, PlansDrawsOfWhatItWouldSample) {
  std::mt19937_64 random(31);
  std::normal_distribution<float> logit(0.0f, 2.0f);
  std::uniform_real_distribution<double> number(0.0, 1.0);
  Sampler sampler(50);
  int32_t num_planned = 0;
  for (int32_t i = 0; i < 300; ++i) {
    std::vector<float> logits(50);
    for (float& x : logits) x = logit(random);
    std::vector<int32_t> tokens(20);
    // Some are beyond the vocabulary.
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 55);
    SamplingParams params{.temperature = i % 3 == 0 ? 0.0 : 2 * number(random),
                          .min_p = i % 4 == 0 ? 0.05 : 0.0,
                          .seed = i};
    if (i % 2 == 0) {
      params.repetition_penalty = 0.5 + number(random);
      params.presence_penalty = number(random) - 0.5;
      params.frequency_penalty = number(random) - 0.5;
      params.logit_bias = {{4, 3.0}, {4, 1.0}, {54, 1.0}};
      params.min_tokens = 15;
    }
    if (i % 10 == 9) params.top_k = 5;
    RequestInfo info = InfoWith(params, 8);
    info.stop_token_ids = {3, 4, 30, 53};
    RowDraw draw;
    std::vector<LogitEdit> edits;
    const bool is_planned = sampler.PlanDraw(&info, tokens, 7, &draw, &edits);
    EXPECT_EQ(is_planned, params.top_k == 0 || params.temperature == 0.0);
    if (!is_planned) {
      EXPECT_TRUE(edits.empty());
      continue;
    }
    ++num_planned;
    EXPECT_EQ(draw.row, 7);
    EXPECT_EQ(DrawPlanned(draw, edits, logits),
              sampler.Sample(&info, tokens, logits));
  }
  EXPECT_GE(num_planned, 250);
}

}  // namespace
}  // namespace blockmgr
