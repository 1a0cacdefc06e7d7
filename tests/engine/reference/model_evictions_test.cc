// Evictions from a real language model: every policy in every mode gives the
// answers that a prompt gets alone, however it was computed, and at keep ratio
// 1 the answers of the full cache. The test has the label `model`.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"
#include "engine/gguf/gguf_file.h"
#include "engine/gguf/tensor_type.h"
#include "engine/reference/tiny_engine.h"
#include "scheduler/scheduler.h"
#include "tests/engine/reference/model_line.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

constexpr int32_t kTextTokens = 176;
constexpr int32_t kAnswerTokens = 24;

std::vector<std::string> Policies() {
  return {"snapkv(window=16)",
          "snapkv(window=16) | adakv | critical",
          "snapkv(window=16) | pyramid | critical(gqa_product=true)",
          "snapkv(window=16) | headkv(profile=measured)",
          "h2o | ada_pyramid",
          "h2o(obs_window=16) | uniform | critical(norm=l2)",
          "tova | adakv",
          "dropkv(window=16) | adakv",
          "keydiff | adakv",
          absl::StrCat("keydiff | lukv(profile=measured) | topk | ",
                       "protect(sinks=4,recent=10%)"),
          "keydiff(anchor=median) | global | critical",
          "expected_attention | adakv",
          "expected_attention(stats=measured) | lukv(profile=measured)",
          "streaming | duo(profile=measured) | topk | protect(recent=16)",
          "knorm | uniform | topk | round(token)",
          "random(seed=3) | global"};
}

// Tokens of the license, from a place of its own for every text, and a
// question.
std::vector<int32_t> PromptOf(int32_t text) {
  static const auto& license = *new std::vector<int32_t>([] {
    std::ifstream file("/usr/share/common-licenses/GPL-3");
    const std::string all{std::istreambuf_iterator<char>(file),
                          std::istreambuf_iterator<char>()};
    return ModelFixture::Get().tokenizer().Encode(all,
                                                  /*parse_special=*/false);
  }());
  const auto begin = license.begin() + int64_t{text} * 400;
  std::vector<int32_t> prompt(begin, begin + kTextTokens);
  const std::vector<int32_t> question = ModelFixture::Get().tokenizer().Encode(
      "\n\nThe main point of this text is", /*parse_special=*/false);
  prompt.insert(prompt.end(), question.begin(), question.end());
  return prompt;
}

// Equal tables for equal layouts.
RequestEviction EvictionOf(const std::string& policy, EvictionMode mode,
                           const char* keep_ratio) {
  RequestEviction eviction;
  eviction.mode = mode;
  eviction.policy = *ParsePolicy(policy);
  eviction.target.ratio = *KeepRatio::Parse(keep_ratio);
  if (mode == EvictionMode::kEveryChunk || mode == EvictionMode::kDecode) {
    eviction.compress_every = 64;
  }
  if (mode == EvictionMode::kDecode) eviction.compress_every = 16;
  const ModelLayout layout =
      MakeLayout(ModelFixture::Get().model()->shape(), 16, DType::kFloat32, 8);
  if (eviction.policy.needs_table()) {
    BudgetTable table = SkewedScores(layout, 1);
    if (eviction.policy.budget.kind == BudgetKind::kLuKv) {
      table = PairedProfile(layout, 1);
    }
    eviction.table = std::make_shared<const BudgetTable>(std::move(table));
  }
  return eviction;
}

ModelLineOptions OptionsOf(int32_t num_blocks) {
  ModelLineOptions options;
  options.num_blocks = num_blocks;
  options.scheduler.query_window = 64;
  options.scheduler.engine.num_scorer_states = 8;
  options.scheduler.max_steps_in_flight = 2;
  options.query_stats["measured"] =
      std::make_shared<const QueryStatsTable>(RandomQueryStats(30, 9, 64, 5));
  return options;
}

Request RequestOf(const std::string& id, int32_t text,
                  const RequestEviction& eviction) {
  Request request;
  request.id = id;
  request.prompt = PromptOf(text);
  request.max_tokens = kAnswerTokens;
  request.eviction = eviction;
  return request;
}

std::vector<int32_t> AnswerAlone(int32_t text, const RequestEviction& eviction,
                                 uint64_t* num_evictions = nullptr) {
  ModelLine line(OptionsOf(48));
  line.Submit(RequestOf("alone", text, eviction));
  line.RunToTheEnd();
  if (num_evictions != nullptr) *num_evictions = line.stats().num_evictions;
  EXPECT_EQ(line.stats().num_refused_evictions, 0u);
  return line.TokensOf("alone");
}

// Without mode pressure, whose evictions depend on when blocks were short:
// UnderPressure below.
class ModelEvictionsTest
    : public testing::TestWithParam<std::tuple<std::string, EvictionMode>> {};

TEST_P(ModelEvictionsTest, AnswersInABatchAreThoseAlone) {
  const auto& [policy, mode] = GetParam();
  const RequestEviction eviction = EvictionOf(policy, mode, "0.3");
  // Two prompts fit, but not their answers.
  ModelLineOptions options = OptionsOf(30);
  options.scheduler.enable_prefix_caching = false;
  ModelLine line(options);
  for (int32_t text = 0; text < 2; ++text) {
    line.Submit(RequestOf(absl::StrCat(text), text, eviction));
  }
  line.RunToTheEnd();
  for (int32_t text = 0; text < 2; ++text) {
    uint64_t num_evictions = 0;
    EXPECT_EQ(line.TokensOf(absl::StrCat(text)),
              AnswerAlone(text, eviction, &num_evictions));
    EXPECT_GT(num_evictions, 0u);
  }
  EXPECT_EQ(line.stats().num_refused_evictions, 0u);
}

TEST_P(ModelEvictionsTest, WhoKeepsEverythingAnswersAsTheFullCache) {
  const auto& [policy, mode] = GetParam();
  static const auto& full =
      *new std::vector<int32_t>(AnswerAlone(0, RequestEviction()));
  EXPECT_EQ(AnswerAlone(0, EvictionOf(policy, mode, "1")), full);
}

INSTANTIATE_TEST_SUITE_P(
    , ModelEvictionsTest,
    testing::Combine(testing::ValuesIn(Policies()),
                     testing::Values(EvictionMode::kAfterPrefill,
                                     EvictionMode::kEveryChunk,
                                     EvictionMode::kDecode)));

constexpr const char* kSome[] = {
    "keydiff | adakv", "snapkv(window=16) | adakv | critical",
    "expected_attention(stats=measured) | lukv(profile=measured)"};

TEST(ModelEvictionWaysTest, WithDrafts) {
  const RequestEviction eviction =
      EvictionOf("keydiff | adakv", EvictionMode::kDecode, "0.3");
  ModelLineOptions options = OptionsOf(48);
  options.max_drafts = 3;
  options.scheduler.num_speculative_tokens = 3;
  ModelLine line(options);
  line.Submit(RequestOf("drafts", 0, eviction));
  line.RunToTheEnd();
  EXPECT_EQ(line.TokensOf("drafts"), AnswerAlone(0, eviction));
  EXPECT_GT(line.stats().num_draft_tokens, 0u);
}

// Two questions about one text, whose compressed form they share.
TEST(ModelEvictionWaysTest, OnSharedCompressedPrefixes) {
  for (const char* policy : kSome) {
    SCOPED_TRACE(policy);
    RequestEviction eviction =
        EvictionOf(policy, EvictionMode::kAfterPrefill, "0.3");
    eviction.share_prefix = true;
    const auto other = [&](const char* id) {
      Request request = RequestOf(id, 0, eviction);
      // The prompt's last whole page, and the one behind it, are equal.
      request.prompt.back() += 1;
      return request;
    };
    ModelLine alone(OptionsOf(48));
    alone.Submit(other("other"));
    alone.RunToTheEnd();
    ModelLine line(OptionsOf(48));
    line.Submit(RequestOf("first", 0, eviction));
    line.RunToTheEnd();
    line.Submit(other("other"));
    line.RunToTheEnd();
    EXPECT_EQ(line.TokensOf("first"), AnswerAlone(0, eviction));
    EXPECT_EQ(line.TokensOf("other"), alone.TokensOf("other"));
    RecordProperty(absl::StrCat("shared_tokens_", policy),
                   absl::StrCat(line.stats().num_cached_region_tokens));
  }
}

// A fork goes on from the middle of an output, behind its parent's compression.
TEST(ModelEvictionWaysTest, ForkedAndOnHits) {
  constexpr int32_t kOutputs = 8;
  for (const char* policy : kSome) {
    SCOPED_TRACE(policy);
    const RequestEviction eviction =
        EvictionOf(policy, EvictionMode::kAfterPrefill, "0.3");
    const std::vector<int32_t> alone = AnswerAlone(0, eviction);
    ModelLine line(OptionsOf(96));
    line.Submit(RequestOf("first", 0, eviction));
    while (line.TokensOf("first").size() < kOutputs) ASSERT_TRUE(line.Step());
    Request fork = RequestOf("fork", 0, RequestEviction());
    fork.fork_of = "first";  // and compressed as it
    fork.prompt.insert(fork.prompt.end(), alone.begin(),
                       alone.begin() + kOutputs);
    fork.max_tokens = kAnswerTokens - kOutputs;
    line.Submit(std::move(fork));
    line.RunToTheEnd();
    EXPECT_EQ(line.TokensOf("first"), alone);
    EXPECT_EQ(line.TokensOf("fork"),
              std::vector<int32_t>(alone.begin() + kOutputs, alone.end()));
    EXPECT_EQ(line.stats().num_forks, 1u);
    line.Submit(RequestOf("hit", 0, eviction));
    line.RunToTheEnd();
    EXPECT_EQ(line.TokensOf("hit"), alone);
  }
}

// Has a request alone compressed by commands, where others were squeezed.
void AnswerAsSqueezed(int32_t text, const RequestEviction& eviction,
                      const std::vector<LineEviction>& squeezes,
                      ModelLine* line) {
  line->Submit(RequestOf("alone", text, RequestEviction()));
  for (const LineEviction& squeeze : squeezes) {
    while (line->TokensOf("alone").size() + 1 < squeeze.num_tokens) {
      ASSERT_TRUE(line->Step());
    }
    EvictionCommand command;
    command.policy = eviction.policy;
    command.target = eviction.target;
    command.cut = squeeze.effect.cut;
    command.table = eviction.table;
    line->Evict("alone", std::move(command));
  }
  line->RunToTheEnd();
}

// Requests that are squeezed because blocks are short answer like requests that
// are alone, and are compressed by commands at the same places.
TEST(ModelEvictionWaysTest, UnderPressure) {
  for (const char* policy : kSome) {
    SCOPED_TRACE(policy);
    const RequestEviction eviction =
        EvictionOf(policy, EvictionMode::kPressure, "0.3");
    // Two prompts fit, but not their answers.
    ModelLineOptions options = OptionsOf(26);
    options.scheduler.max_steps_in_flight = 1;
    options.scheduler.enable_prefix_caching = false;
    ModelLine line(options);
    for (int32_t text = 0; text < 2; ++text) {
      line.Submit(RequestOf(absl::StrCat(text), text, eviction));
    }
    line.RunToTheEnd();
    EXPECT_EQ(line.stats().num_preemptions, 0u);
    EXPECT_GT(line.stats().num_evictions, 0u);
    options.num_blocks = 48;
    for (int32_t text = 0; text < 2; ++text) {
      const std::string id = absl::StrCat(text);
      const std::vector<LineEviction>& squeezes = line.EvictionsOf(id);
      ModelLine alone(options);
      AnswerAsSqueezed(text, eviction, squeezes, &alone);
      EXPECT_EQ(line.TokensOf(id), alone.TokensOf("alone"));
      const std::vector<LineEviction>& commanded = alone.EvictionsOf("alone");
      ASSERT_EQ(commanded.size(), squeezes.size());
      for (size_t i = 0; i < squeezes.size(); ++i) {
        EXPECT_EQ(commanded[i].num_tokens, squeezes[i].num_tokens);
        EXPECT_EQ(commanded[i].effect.kept_entries,
                  squeezes[i].effect.kept_entries);
      }
    }
  }
}

// W_O as the file has it, against the engine's packed copy: two layers.
TEST(ModelEvictionWaysTest, CriticalUsesTheOutputProjectionOfTheFile) {
  const ModelShape& shape = ModelFixture::Get().model()->shape();
  const auto hidden = static_cast<size_t>(shape.hidden);
  std::vector<float> unpacked(static_cast<size_t>(shape.q_width()) * hidden);
  for (const int32_t layer : {0, 17}) {
    const GgufTensor* tensor = ModelFixture::Get().file().Find(
        absl::StrCat("blk.", layer, ".attn_output.weight"));
    ASSERT_NE(tensor, nullptr);
    const auto width = static_cast<size_t>(tensor->shape[0]);
    ASSERT_EQ(width, static_cast<size_t>(shape.q_width()));
    ModelFixture::Get().model()->UnpackOutput(layer, 0, unpacked);
    std::vector<float> row(width);
    const auto row_bytes = static_cast<size_t>(
        RowBytes(tensor->type, static_cast<int64_t>(width)));
    for (size_t m = 0; m < hidden; ++m) {
      DequantizeRow(tensor->type,
                    tensor->data.subspan(m * row_bytes, row_bytes), row);
      for (size_t d = 0; d < width; ++d) {
        // Weights of the file may be kept with 16 bits.
        ASSERT_NEAR(unpacked[d * hidden + m], row[d],
                    0x1p-8 * std::abs(row[d]) + 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
