#include "bench/quality/measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/quality/model_line.h"
#include "tests/bench/quality/quality_testing.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kContext = 81;  // five pages and a token
constexpr int32_t kCut = 80;
// Of products in float32.
constexpr double kTolerance = 2e-3;

QualityPrompt RandomPrompt(uint64_t seed, int32_t num_turns) {
  std::mt19937_64 random(seed);
  QualityPrompt prompt;
  prompt.context = RandomBytes(kContext, &random);
  for (int32_t i = 0; i < num_turns; ++i) {
    prompt.turns.push_back({.question = RandomBytes(5, &random),
                            .follow_up = RandomBytes(7, &random),
                            .lead = RandomBytes(2, &random),
                            .answer = RandomBytes(3, &random),
                            .depth = 0.1 * i});
  }
  return prompt;
}

std::vector<QualityCell> CellsOf(const std::string& mode,
                                 const std::vector<std::string>& policies,
                                 const std::vector<std::string>& ratios) {
  auto cells = MakeCells({.modes = {mode},
                          .policies = policies,
                          .keep_ratios = ratios,
                          .keep_tokens = {}},
                         {});
  EXPECT_OK(cells);
  return *std::move(cells);
}

absl::StatusOr<std::unique_ptr<ModelLine>> MakeLine() {
  return ModelLine::Create({.model = ByteModel(3),
                            .dtype = DType::kFloat32,
                            .page_size = 16,
                            .num_blocks = 64,
                            .num_threads = 1});
}

std::vector<CellOutcome> Measure(const QualityPrompt& prompt,
                                 const std::vector<QualityCell>& cells) {
  auto line = MakeLine();
  EXPECT_OK(line);
  size_t num_told = 0;
  auto outcomes =
      MeasurePrompt(prompt, cells, line->get(), [&] { ++num_told; });
  EXPECT_OK(outcomes);
  EXPECT_EQ(num_told, cells.size());
  EXPECT_EQ(outcomes->size(), cells.size() + 1);
  const auto blocks = (*line)->stats().blocks;
  EXPECT_EQ(blocks.free_blocks + blocks.cached_blocks, 63) << "blocks are lost";
  return *std::move(outcomes);
}

// A sequence in float64, over a dense cache with masks.
class Judge {
 public:
  Judge() : model_(ByteModel(3)), full_(model_.get()), kept_(model_.get()) {}

  // Compresses behind every 16 tokens from now on.
  void KeepStreamingWhileDecoding(int32_t budget) {
    decode_budget_ = budget;
    next_length_ = full_.length() + 16;
  }
  void Compute(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
      if (decode_budget_ > 0 && full_.length() == next_length_) {
        KeepStreaming(decode_budget_, (next_length_ - 1) / 16 * 16);
        next_length_ += 16;
      }
      full_logits_ = full_.Forward(token);
      kept_logits_ = kept_.Forward(token);
    }
  }
  // What `streaming(sinks=4)` keeps of `budget`: the first four and the last.
  void KeepStreaming(int32_t budget, int32_t cut = kCut) {
    std::vector<int32_t> kept;
    for (int32_t i = 0; i < cut; ++i) {
      if (i < 4 || i >= cut - (budget - 4)) kept.push_back(i);
    }
    for (int32_t layer = 0; layer < model_->shape().num_layers; ++layer) {
      for (int32_t head = 0; head < model_->shape().num_heads; ++head) {
        kept_.Keep(layer, head, cut, kept);
      }
    }
  }
  // Computes an answer, and returns what it should give.
  AnswerOutcome Answer(const std::vector<int32_t>& answer) {
    AnswerOutcome outcome;
    outcome.correct = true;
    for (const int32_t token : answer) {
      const std::vector<double> full = LogProbs(full_logits_);
      const std::vector<double> kept = LogProbs(kept_logits_);
      const auto index = static_cast<size_t>(token);
      const double share = 1.0 / static_cast<double>(answer.size());
      outcome.nll -= share * kept[index];
      for (size_t i = 0; i < full.size(); ++i) {
        outcome.kl += share * std::exp(full[i]) * (full[i] - kept[i]);
      }
      const bool is_best = Argmax(kept) == token;
      outcome.correct = outcome.correct && is_best;
      if (is_best) outcome.token_share += share;
      Compute({token});
    }
    return outcome;
  }

 private:
  static std::vector<double> LogProbs(const std::vector<double>& logits) {
    double sum = 0.0;
    for (const double logit : logits) sum += std::exp(logit);
    std::vector<double> logprobs;
    logprobs.reserve(logits.size());
    for (const double logit : logits) logprobs.push_back(logit - std::log(sum));
    return logprobs;
  }

  const std::shared_ptr<const LanguageModel> model_;
  int32_t decode_budget_ = 0;
  int32_t next_length_ = 0;
  DenseReference full_;
  DenseReference kept_;
  std::vector<double> full_logits_;
  std::vector<double> kept_logits_;
};

void ExpectAnswer(const AnswerOutcome& got, const AnswerOutcome& expected) {
  EXPECT_EQ(got.correct, expected.correct);
  EXPECT_NEAR(got.token_share, expected.token_share, 1e-9);
  EXPECT_NEAR(got.nll, expected.nll, kTolerance);
  EXPECT_NEAR(got.kl, expected.kl, kTolerance);
}

TEST(MeasureTest, TurnsOnACompressedContextAreTheReferences) {
  const QualityPrompt prompt = RandomPrompt(1, 3);
  const std::vector<CellOutcome> outcomes =
      Measure(prompt, CellsOf("agnostic", {"streaming"}, {"0.4"}));
  Judge judge;
  judge.Compute(prompt.context);
  judge.KeepStreaming(32);
  ASSERT_EQ(outcomes[1].answers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(absl::StrCat("turn ", i));
    const QualityTurn& turn = prompt.turns[i];
    judge.Compute(i == 0 ? turn.question : turn.follow_up);
    judge.Compute(turn.lead);
    const AnswerOutcome expected = judge.Answer(turn.answer);
    EXPECT_GT(expected.kl, 10 * kTolerance) << "the eviction changes little";
    ExpectAnswer(outcomes[1].answers[i], expected);
    EXPECT_EQ(outcomes[1].answers[i].depth, turn.depth);
  }
  // 32 entries of a head, and the token behind the cut.
  EXPECT_NEAR(outcomes[1].kept_share, 33.0 / kContext, 1e-9);
  // Of 2 layers and 2 heads: two pages each fill two blocks, and the tail has
  // one. A block has 4 pages of 16 tokens of K and V, 16 floats each.
  constexpr int64_t kBlockBytes = int64_t{4} * 16 * 2 * 16 * 4;
  EXPECT_EQ(outcomes[1].held_bytes, 3 * kBlockBytes);
  EXPECT_EQ(outcomes[0].held_bytes, 6 * kBlockBytes);
  EXPECT_GT(outcomes[1].tokens_per_s, 0.0);
}

TEST(MeasureTest, QuestionsInThePromptAreCompressedEachAlone) {
  const QualityPrompt prompt = RandomPrompt(2, 2);
  const std::vector<CellOutcome> outcomes =
      Measure(prompt, CellsOf("aware", {"streaming"}, {"0.4"}));
  for (size_t i = 0; i < 2; ++i) {
    const QualityTurn& turn = prompt.turns[i];
    // 86 tokens are compressed, which are five pages and a part.
    Judge judge;
    judge.Compute(prompt.context);
    judge.Compute(turn.question);
    judge.KeepStreaming(32);
    judge.Compute(turn.lead);
    ExpectAnswer(outcomes[1].answers[i], judge.Answer(turn.answer));
  }
}

TEST(MeasureTest, KeepingAllChangesNothing) {
  const QualityPrompt prompt = RandomPrompt(3, 2);
  for (const char* mode : {"agnostic", "aware"}) {
    SCOPED_TRACE(mode);
    const std::vector<CellOutcome> outcomes =
        Measure(prompt, CellsOf(mode, {"keydiff", "snapkv(window=8)"}, {"1"}));
    for (const CellOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.answers, outcomes[0].answers);
      EXPECT_EQ(outcome.kept_share, 1.0);
      EXPECT_EQ(outcome.held_bytes, outcomes[0].held_bytes);
      for (const AnswerOutcome& answer : outcome.answers) {
        EXPECT_EQ(answer.kl, 0.0);
      }
    }
  }
}

TEST(MeasureTest, ACellDoesNotDependOnTheOthers) {
  const QualityPrompt prompt = RandomPrompt(4, 2);
  const std::vector<std::string> policies = {
      "keydiff | adakv", "snapkv(window=8) | adakv", "knorm | uniform"};
  const std::vector<CellOutcome> together =
      Measure(prompt, CellsOf("agnostic", policies, {"0.5", "0.2"}));
  size_t index = 1;
  for (const char* ratio : {"0.5", "0.2"}) {
    for (const std::string& policy : policies) {
      const std::vector<CellOutcome> alone =
          Measure(prompt, CellsOf("agnostic", {policy}, {ratio}));
      EXPECT_EQ(alone[1].answers, together[index].answers) << policy;
      EXPECT_LT(together[index].held_bytes, together[0].held_bytes);
      ++index;
    }
  }
}

TEST(MeasureTest, CompressedAlongThePromptAndAlongTheTurns) {
  const QualityPrompt prompt = RandomPrompt(5, 3);
  const CellFlags flags = {.modes = {"every-chunk=16"},
                           .policies = {"keydiff"},
                           .keep_ratios = {},
                           .keep_tokens = {32}};
  ASSERT_OK_AND_ASSIGN(const std::vector<QualityCell> chunks,
                       MakeCells(flags, {}));
  const std::vector<CellOutcome> outcomes = Measure(prompt, chunks);
  EXPECT_NEAR(outcomes[1].kept_share, 33.0 / kContext, 1e-9);
  EXPECT_GT(outcomes[1].answers[0].kl, 0.0);

  CellFlags decoding = flags;
  decoding.modes = {"decode=16"};
  ASSERT_OK_AND_ASSIGN(const std::vector<QualityCell> decode,
                       MakeCells(decoding, {}));
  const std::vector<CellOutcome> decoded = Measure(prompt, decode);
  const std::vector<CellOutcome> once = Measure(prompt, [&] {
    CellFlags after = flags;
    after.modes = {"agnostic"};
    return *MakeCells(after, {});
  }());
  // The first compression is the same, the later ones are not.
  EXPECT_EQ(decoded[1].answers.front(), once[1].answers.front());
  EXPECT_NE(decoded[1].answers.back(), once[1].answers.back());
}

TEST(MeasureTest, CompressedWhileDecodingIsTheReference) {
  QualityPrompt prompt = RandomPrompt(6, 3);
  // Longer than what the compressed request itself, which is there until the
  // end, has tokens for: it takes one at each compression.
  std::mt19937_64 random(60);
  prompt.turns[2].answer = RandomBytes(200, &random);
  ASSERT_OK_AND_ASSIGN(const std::vector<QualityCell> cells,
                       MakeCells({.modes = {"decode=16"},
                                  .policies = {"streaming"},
                                  .keep_ratios = {},
                                  .keep_tokens = {32}},
                                 {}));
  const std::vector<CellOutcome> outcomes = Measure(prompt, cells);
  Judge judge;
  judge.Compute(prompt.context);
  judge.KeepStreaming(32);
  judge.KeepStreamingWhileDecoding(32);
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(absl::StrCat("turn ", i));
    const QualityTurn& turn = prompt.turns[i];
    judge.Compute(i == 0 ? turn.question : turn.follow_up);
    judge.Compute(turn.lead);
    ExpectAnswer(outcomes[1].answers[i], judge.Answer(turn.answer));
  }
  // A head holds 33 entries behind the prompt, and 33 behind each compression:
  // 32 and the token after the cut. There are 10 + 12 + 209 tokens.
  double sum = 0.0;
  for (int32_t i = 0; i < 231; ++i) sum += 33 + i % 16 + 1;
  EXPECT_NEAR(outcomes[1].mean_entries, sum / 231, 1e-9);
  EXPECT_NEAR(outcomes[0].mean_entries, kContext + 116, 1e-9);
}

// Returns the logits behind a compressed prompt, on a line that has computed a
// part of it before.
std::vector<std::vector<float>> LogitsBehind(const QualityPrompt& prompt,
                                             const RequestEviction& eviction,
                                             int32_t num_before) {
  auto line = MakeLine();
  EXPECT_OK(line);
  const auto run = [&](Request request, bool ends, LogitsReader reader) {
    auto id = (*line)->Submit(std::move(request), std::move(reader));
    EXPECT_OK(id);
    EXPECT_OK(ends ? (*line)->RunUntilEnd(*id) : (*line)->RunUntilToken(*id));
  };
  if (num_before > 0) {
    Request before;
    before.id = "before";
    before.prompt.assign(prompt.context.begin(),
                         prompt.context.begin() + num_before);
    before.max_tokens = 1;
    run(before, true, {});
  }
  Request parent;
  parent.id = "compressed";
  parent.prompt = prompt.context;
  parent.max_tokens = 8;
  parent.eviction = eviction;
  run(parent, false, {});
  Request fork;
  fork.id = "asked";
  fork.prompt = prompt.context;
  fork.prompt.insert(fork.prompt.end(), prompt.turns[0].question.begin(),
                     prompt.turns[0].question.end());
  fork.max_tokens = 1;
  fork.fork_of = "compressed";
  std::vector<std::vector<float>> rows;
  run(fork, true,
      {.positions = {kContext, kContext + 4},
       .read = [&](int32_t /*position*/, std::span<const float> logits) {
         rows.emplace_back(logits.begin(), logits.end());
       }});
  EXPECT_EQ(rows.size(), 2u);
  return rows;
}

// Scorers that look at queries have to see those of shared blocks, too.
TEST(MeasureTest, ASharedContextIsCompressedAsOneThatIsComputedAnew) {
  const QualityPrompt prompt = RandomPrompt(7, 1);
  for (const char* mode : {"agnostic", "every-chunk=32", "decode=32"}) {
    for (const QualityCell& cell :
         CellsOf(mode,
                 {"h2o | adakv", "snapkv(window=20) | adakv", "tova | adakv",
                  "keydiff | adakv", "expected_attention | adakv",
                  "dropkv(window=20) | adakv", "snapkv(window=20) | critical"},
                 {"0.4"})) {
      SCOPED_TRACE(cell.name());
      const auto anew = LogitsBehind(prompt, cell.eviction, 0);
      for (const int32_t num_before : {40, kContext}) {
        const auto shared = LogitsBehind(prompt, cell.eviction, num_before);
        ASSERT_EQ(shared.size(), anew.size());
        for (size_t row = 0; row < anew.size(); ++row) {
          for (size_t i = 0; i < anew[row].size(); ++i) {
            EXPECT_NEAR(shared[row][i], anew[row][i], kTolerance) << num_before;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
