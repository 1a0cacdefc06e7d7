// A real language model through scheduler and engine: its greedy answers are
// those of an independent reference (reference_answers.py), and the same alone,
// in a batch, preempted, swapped, forked, on prefix hits and with steps in
// flight.
//
// The test has the label `model`. BLOCKMGR_MODEL names the model's file
// (scripts/fetch_model.sh), BLOCKMGR_MODEL_ANSWERS the reference's answers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/reference/gguf_model.h"
#include "engine/reference/sampler.h"
#include "engine/reference/tiny_engine.h"
#include "engine/reference/tiny_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "scheduler/scheduler.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int32_t kPlenty = 512;  // blocks for all questions at a time
// Tokens asked for behind an answer, so that requests grow and meet in the
// pool.
constexpr int32_t kMoreTokens = 32;
// Where two logits are closer, fp32 and fp64 may choose different tokens.
constexpr double kMargin = 1e-2;

struct Question {
  std::string text;
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
  std::vector<double> margins;  // of the answer's tokens
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// The model and the questions, loaded once.
class Fixture {
 public:
  static const Fixture& Get() {
    static const auto& fixture = *new Fixture;
    return fixture;
  }

  const std::vector<Question>& questions() const { return questions_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::shared_ptr<const LanguageModel>& model() const { return model_; }

 private:
  Fixture() {
    const auto file = GgufFile::Open(FromEnvironment("BLOCKMGR_MODEL"));
    BM_CHECK_OK(file.status());
    auto model = LoadGgufModel(**file);
    BM_CHECK_OK(model.status());
    model_ = *std::move(model);
    auto tokenizer = Tokenizer::Create(**file);
    BM_CHECK_OK(tokenizer.status());
    tokenizer_ = std::make_unique<Tokenizer>(*std::move(tokenizer));
    std::ifstream answers(FromEnvironment("BLOCKMGR_MODEL_ANSWERS"));
    const nlohmann::json reference = nlohmann::json::parse(answers);
    for (const auto& entry : reference["answers"]) {
      questions_.push_back(
          {.text = entry["question"],
           .prompt = entry["prompt"].get<std::vector<int32_t>>(),
           .answer = entry["answer"].get<std::vector<int32_t>>(),
           .margins = entry["margins"].get<std::vector<double>>()});
    }
  }

  std::shared_ptr<const LanguageModel> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Question> questions_;
};

struct RunOptions {
  int32_t num_blocks = kPlenty;
  int32_t num_host_blocks = 0;
  SchedulerOptions scheduler = {};
};

// Scheduler and engine without a daemon.
class Line {
 public:
  explicit Line(const RunOptions& options)
      : layout_(MakeLayout(Fixture::Get().model()->shape(), kPageSize,
                           DType::kFloat32, options.num_blocks)) {
    SchedulerOptions scheduler = options.scheduler;
    scheduler.num_host_blocks = options.num_host_blocks;
    scheduler.max_num_seqs = 64;
    scheduler.sampling = {.fields = Sampler::kFields};
    auto made = Scheduler::Create(layout_, scheduler);
    BM_CHECK_OK(made.status());
    scheduler_ = *std::move(made);
    auto backends = CreateCpuShards(layout_);
    BM_CHECK_OK(backends.status());
    engine_ = std::make_unique<TinyEngine>(
        Fixture::Get().model(), layout_, *std::move(backends),
        TinyEngineOptions{.max_sequences = scheduler.max_num_seqs,
                          .num_host_blocks = options.num_host_blocks,
                          .num_threads = 2});
  }

  void Submit(const std::string& id, const Question& question,
              const std::string& fork_of = "") {
    Request request;
    request.id = id;
    request.prompt = question.prompt;
    request.max_tokens =
        static_cast<int32_t>(question.answer.size()) + kMoreTokens;
    request.fork_of = fork_of;
    const absl::StatusOr<RequestId> number =
        scheduler_->Submit(std::move(request));
    ASSERT_OK(number);
    names_[*number] = id;
  }

  // Has the model tell the probabilities of a text.
  void SubmitText(const std::vector<int32_t>& tokens) {
    Request request;
    request.id = "text";
    request.prompt = tokens;
    request.max_tokens = 1;
    request.sampling = SamplingParams{.temperature = 0, .prompt_logprobs = 0};
    const absl::StatusOr<RequestId> number =
        scheduler_->Submit(std::move(request));
    ASSERT_OK(number);
    names_[*number] = "text";
  }

  // Runs one step if there is one, and reads the oldest answer if there is
  // none, or if no further step may be issued. Returns false at the end.
  bool Step() {
    StepPlan plan;
    if (scheduler_->Schedule(&plan)) {
      StepResult result;
      EXPECT_OK(engine_->Run(plan, &result));
      unread_.push_back(std::move(result));
      most_in_flight_ = std::max(most_in_flight_, unread_.size());
      num_chunks_ += std::ranges::count(plan.samples, uint8_t{0});
      return true;
    }
    if (unread_.empty()) return false;
    Effects effects;
    EXPECT_OK(scheduler_->Update(unread_.front(), &effects));
    unread_.pop_front();
    for (const LogProbsEffect& effect : effects.logprobs) {
      for (const float value : effect.logprobs.logprobs) {
        sum_of_logprobs_ += value;
        ++num_logprobs_;
      }
    }
    for (const TokenEffect& effect : effects.tokens) {
      tokens_[names_.at(effect.request)].push_back(effect.token);
    }
    return true;
  }

  void RunToTheEnd() {
    while (Step()) {
    }
  }

  const std::vector<int32_t>& TokensOf(const std::string& id) {
    return tokens_[id];
  }
  SchedulerStats stats() const { return scheduler_->stats(); }
  size_t most_in_flight() const { return most_in_flight_; }
  // Returns how many runs computed a part of a prompt and sampled nothing.
  int64_t num_chunks() const { return num_chunks_; }
  int64_t num_logprobs() const { return num_logprobs_; }
  // Returns the perplexity of the text that was submitted.
  double Perplexity() const {
    return std::exp(-sum_of_logprobs_ / static_cast<double>(num_logprobs_));
  }

 private:
  const ModelLayout layout_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<TinyEngine> engine_;
  std::deque<StepResult> unread_;
  size_t most_in_flight_ = 0;
  int64_t num_chunks_ = 0;
  double sum_of_logprobs_ = 0;
  int64_t num_logprobs_ = 0;
  std::map<RequestId, std::string> names_;
  std::map<std::string, std::vector<int32_t>> tokens_;
};

// Returns the answer to each question if it is asked alone.
const std::vector<std::vector<int32_t>>& AnswersAlone() {
  static const auto& answers = *[] {
    auto* all = new std::vector<std::vector<int32_t>>;
    for (const Question& question : Fixture::Get().questions()) {
      Line line({.num_blocks = 64});
      line.Submit("alone", question);
      line.RunToTheEnd();
      all->push_back(line.TokensOf("alone"));
    }
    return all;
  }();
  return answers;
}

// Asks all questions at the same time, twice each if `forks`, and expects the
// answers that they get alone.
void ExpectSameAnswers(Line& line, bool forks = false) {
  const std::vector<Question>& questions = Fixture::Get().questions();
  for (size_t i = 0; i < questions.size(); ++i) {
    line.Submit(absl::StrCat(i), questions[i]);
    if (forks) {
      line.Submit(absl::StrCat("fork ", i), questions[i], absl::StrCat(i));
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
  ASSERT_EQ(Fixture::Get().questions().size(), 20u);
  for (const Question& question : Fixture::Get().questions()) {
    const Tokenizer& tokenizer = Fixture::Get().tokenizer();
    const std::string text = tokenizer.Decode(question.prompt);
    EXPECT_THAT(text, ::testing::HasSubstr(question.text));
    EXPECT_EQ(tokenizer.Encode(text, /*parse_special=*/true), question.prompt);
  }
}

TEST(ModelAnswersTest, AnswersAreTheReferences) {
  int32_t num_equal = 0;
  for (size_t i = 0; i < Fixture::Get().questions().size(); ++i) {
    const Question& question = Fixture::Get().questions()[i];
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
        << "token " << at << ": " << Fixture::Get().tokenizer().Decode(ours);
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
      Fixture::Get().tokenizer().Encode(text, /*parse_special=*/false);
  const std::pair<int32_t, double> cases[] = {
      {512, 18.8}, {1024, 19.3}, {2048, 19.7}, {4096, 17.9}};
  for (const auto& [length, expected] : cases) {
    SCOPED_TRACE(absl::StrCat(length, " tokens"));
    ASSERT_GE(std::ssize(all), length);
    Line line({});
    line.SubmitText({all.begin(), all.begin() + length});
    line.RunToTheEnd();
    EXPECT_EQ(line.num_logprobs(), length - 1);
    EXPECT_NEAR(line.Perplexity(), expected, 0.01 * expected);
  }
}

TEST(ModelAnswersTest, InABatchAndWithStepsInFlight) {
  for (int32_t steps = 1; steps <= 4; ++steps) {
    SCOPED_TRACE(absl::StrCat(steps, " steps in flight"));
    RunOptions options;
    options.scheduler.max_steps_in_flight = steps;
    Line line(options);
    ExpectSameAnswers(line);
    EXPECT_EQ(line.most_in_flight(), static_cast<size_t>(steps));
  }
}

TEST(ModelAnswersTest, InSmallChunks) {
  RunOptions options;
  options.scheduler.max_num_batched_tokens = 64;
  Line line(options);
  ExpectSameAnswers(line);
  EXPECT_GT(line.num_chunks(), 0);
}

TEST(ModelAnswersTest, Preempted) {
  RunOptions options{.num_blocks = 40};
  options.scheduler.enable_prefix_caching = false;
  Line line(options);
  ExpectSameAnswers(line);
  EXPECT_GT(line.stats().num_preemptions, 0u);
}

TEST(ModelAnswersTest, Swapped) {
  RunOptions options{.num_blocks = 40, .num_host_blocks = 200};
  options.scheduler.enable_prefix_caching = false;
  Line line(options);
  ExpectSameAnswers(line);
  const SchedulerStats stats = line.stats();
  EXPECT_GT(stats.num_swap_ins, 0u) << stats.num_swap_outs << " swap outs, "
                                    << stats.num_preemptions << " preemptions";
}

TEST(ModelAnswersTest, Forked) {
  RunOptions options;
  options.scheduler.enable_prefix_caching = false;
  Line line(options);
  ExpectSameAnswers(line, /*forks=*/true);
  EXPECT_GT(line.stats().num_forks, 0u);
}

TEST(ModelAnswersTest, OnPrefixHits) {
  Line line({});
  const std::vector<Question>& questions = Fixture::Get().questions();
  for (const std::string run : {"first", "second"}) {
    for (size_t i = 0; i < questions.size(); ++i) {
      line.Submit(absl::StrCat(run, i), questions[i]);
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
