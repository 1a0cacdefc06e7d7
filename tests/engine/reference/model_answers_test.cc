// A real language model through scheduler and engine: its greedy answers are
// those of an independent reference (reference_answers.py), and the same alone,
// in a batch, preempted, swapped, forked, on prefix hits and with steps in
// flight.
// The test has the label `model`.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tokenizer/tokenizer.h"
#include "scheduler/scheduler.h"
#include "tests/engine/reference/model_line.h"

namespace blockmgr {
namespace {

// Tokens asked for behind an answer, so that requests grow and meet in the
// pool.
constexpr int32_t kMoreTokens = 32;
// Where two logits are closer, fp32 and fp64 may choose different tokens.
constexpr double kMargin = 1e-2;

// Returns the answer to each question if it is asked alone.
const std::vector<std::vector<int32_t>>& AnswersAlone() {
  static const auto& answers = *[] {
    auto* all = new std::vector<std::vector<int32_t>>;
    for (const ModelQuestion& question : ModelFixture::Get().questions()) {
      ModelLine line({.num_blocks = 64});
      line.Ask("alone", question, kMoreTokens);
      line.RunToTheEnd();
      all->push_back(line.TokensOf("alone"));
    }
    return all;
  }();
  return answers;
}

// Asks all questions at the same time, twice each if `forks`, and expects the
// answers that they get alone.
void ExpectSameAnswers(ModelLine& line, bool forks = false) {
  const std::vector<ModelQuestion>& questions = ModelFixture::Get().questions();
  for (size_t i = 0; i < questions.size(); ++i) {
    line.Ask(absl::StrCat(i), questions[i], kMoreTokens);
    if (forks) {
      line.Ask(absl::StrCat("fork ", i), questions[i], kMoreTokens,
               absl::StrCat(i));
    }
  }
  line.RunToTheEnd();
  for (size_t i = 0; i < questions.size(); ++i) {
    SCOPED_TRACE(questions[i].text);
    EXPECT_EQ(line.TokensOf(absl::StrCat(i)), AnswersAlone()[i]);
    if (!forks) continue;
    EXPECT_EQ(line.TokensOf(absl::StrCat("fork ", i)), AnswersAlone()[i]);
  }
}

TEST(ModelAnswersTest, TheTokenizerGivesTheReferencesPrompts) {
  ASSERT_EQ(ModelFixture::Get().questions().size(), 20u);
  for (const ModelQuestion& question : ModelFixture::Get().questions()) {
    const Tokenizer& tokenizer = ModelFixture::Get().tokenizer();
    const std::string text = tokenizer.Decode(question.prompt);
    EXPECT_THAT(text, ::testing::HasSubstr(question.text));
    EXPECT_EQ(tokenizer.Encode(text, /*parse_special=*/true), question.prompt);
  }
}

TEST(ModelAnswersTest, AnswersAreTheReferences) {
  int32_t num_equal = 0;
  for (size_t i = 0; i < ModelFixture::Get().questions().size(); ++i) {
    const ModelQuestion& question = ModelFixture::Get().questions()[i];
    SCOPED_TRACE(question.text);
    const std::vector<int32_t>& ours = AnswersAlone()[i];
    ASSERT_EQ(ours.size(), question.answer.size() + kMoreTokens);
    const auto differs = std::mismatch(question.answer.begin(),
                                       question.answer.end(), ours.begin())
                             .first;
    if (differs == question.answer.end()) {
      ++num_equal;
      continue;
    }
    // Behind a token that might be either, the answers are of different texts.
    const auto at = static_cast<size_t>(differs - question.answer.begin());
    EXPECT_LT(question.margins[at], kMargin)
        << "token " << at << ": "
        << ModelFixture::Get().tokenizer().Decode(ours);
  }
  RecordProperty("equal_answers", num_equal);
  EXPECT_GE(num_equal, 15);
}

// The figures are another program's, by torch in fp32, of the first tokens of
// the license.
TEST(ModelAnswersTest, PerplexityOfAText) {
  std::ifstream file("/usr/share/common-licenses/GPL-3");
  ASSERT_TRUE(file) << "expected a Debian or Ubuntu system";
  const std::string text{std::istreambuf_iterator<char>(file),
                         std::istreambuf_iterator<char>()};
  const std::vector<int32_t> all =
      ModelFixture::Get().tokenizer().Encode(text, /*parse_special=*/false);
  const std::pair<int32_t, double> cases[] = {
      {512, 18.8}, {1024, 19.3}, {2048, 19.7}, {4096, 17.9}};
  for (const auto& [length, expected] : cases) {
    SCOPED_TRACE(absl::StrCat(length, " tokens"));
    ASSERT_GE(std::ssize(all), length);
    ModelLine line({});
    line.SubmitText({all.begin(), all.begin() + length});
    line.RunToTheEnd();
    EXPECT_EQ(line.num_logprobs(), length - 1);
    EXPECT_NEAR(line.Perplexity(), expected, 0.01 * expected);
  }
}

TEST(ModelAnswersTest, InABatchAndWithStepsInFlight) {
  for (int32_t steps = 1; steps <= 4; ++steps) {
    SCOPED_TRACE(absl::StrCat(steps, " steps in flight"));
    ModelLineOptions options;
    options.scheduler.max_steps_in_flight = steps;
    ModelLine line(options);
    ExpectSameAnswers(line);
    EXPECT_EQ(line.most_in_flight(), static_cast<size_t>(steps));
  }
}

TEST(ModelAnswersTest, InSmallChunks) {
  ModelLineOptions options;
  options.scheduler.max_num_batched_tokens = 64;
  ModelLine line(options);
  ExpectSameAnswers(line);
  EXPECT_GT(line.num_chunks(), 0);
}

TEST(ModelAnswersTest, Preempted) {
  ModelLineOptions options{.num_blocks = 40};
  options.scheduler.enable_prefix_caching = false;
  ModelLine line(options);
  ExpectSameAnswers(line);
  EXPECT_GT(line.stats().num_preemptions, 0u);
}

TEST(ModelAnswersTest, Swapped) {
  ModelLineOptions options{.num_blocks = 40, .num_host_blocks = 200};
  options.scheduler.enable_prefix_caching = false;
  ModelLine line(options);
  ExpectSameAnswers(line);
  const SchedulerStats stats = line.stats();
  EXPECT_GT(stats.num_swap_ins, 0u) << stats.num_swap_outs << " swap outs, "
                                    << stats.num_preemptions << " preemptions";
}

TEST(ModelAnswersTest, Forked) {
  ModelLineOptions options;
  options.scheduler.enable_prefix_caching = false;
  ModelLine line(options);
  ExpectSameAnswers(line, /*forks=*/true);
  EXPECT_GT(line.stats().num_forks, 0u);
}

TEST(ModelAnswersTest, OnPrefixHits) {
  ModelLine line({});
  const std::vector<ModelQuestion>& questions = ModelFixture::Get().questions();
  for (const std::string run : {"first", "second"}) {
    for (size_t i = 0; i < questions.size(); ++i) {
      line.Ask(absl::StrCat(run, i), questions[i], kMoreTokens);
    }
    line.RunToTheEnd();
    for (size_t i = 0; i < questions.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(run, ": ", questions[i].text));
      EXPECT_EQ(line.TokensOf(absl::StrCat(run, i)), AnswersAlone()[i]);
    }
  }
  EXPECT_GT(line.stats().num_cached_tokens, 500u);
}

}  // namespace
}  // namespace blockmgr
