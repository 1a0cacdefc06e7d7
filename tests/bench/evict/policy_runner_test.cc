#include "bench/evict/policy_runner.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/query_stats_table.h"
#include "kernels/cpu/query_stats.h"
#include "tests/bench/evict/naive_attention.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SyntheticShape kRunnerShape = {.num_layers = 3,
                                         .num_q_heads = 6,
                                         .num_heads = 2,
                                         .length = 130,
                                         .head_dim = 16,
                                         .model_dim = 24};

std::vector<int32_t> KeptOf(const PolicyRun& run, size_t head) {
  return {run.keep.ranks.begin() + run.keep.offsets[head],
          run.keep.ranks.begin() + run.keep.offsets[head + 1]};
}

// Every scorer, and everything that reads more than scores.
const char* const kPolicies[] = {
    "snapkv(window=8)",
    "snapkv(window=8) | adakv | critical",
    "snapkv(window=8) | uniform | critical(gqa_product=true)",
    "h2o | adakv",
    "h2o(norm=count,obs_window=20,recent=5)",
    "tova | pyramid",
    "tova | uniform | critical(gqa_product=true,norm=l2)",
    "keydiff | global",
    "keydiff(anchor=median,metric=dot)",
    "expected_attention(n_future=32) | ada_pyramid",
    "knorm | adakv(mode=floor) | critical(norm=l2)",
    "streaming",
    "random(seed=9) | adakv",
};

TEST(RunPolicyTest, KeepsTheTotalOfEveryPolicy) {
  const Tensors tensors = MakeSyntheticTensors(kRunnerShape, 1);
  for (const char* text : kPolicies) {
    SCOPED_TRACE(text);
    ParityPolicy policy = *ParseParityPolicy(text);
    policy.rounding = Rounding::kToken;
    ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                         RunPolicy(policy, Keep("0.3"), tensors, {}));
    // floor(0.3 * 130) per head.
    EXPECT_THAT(run.keep.ranks, SizeIs(6 * 39));
    EXPECT_EQ(std::accumulate(run.budgets.begin(), run.budgets.end(), 0),
              6 * 39);
    ASSERT_THAT(run.budgets, SizeIs(6));
    for (size_t head = 0; head < 6; ++head) {
      const std::vector<int32_t> kept = KeptOf(run, head);
      EXPECT_THAT(kept, SizeIs(run.budgets[head]));
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      EXPECT_LT(kept.back(), 130);
    }
    const bool streaming = policy.scorer.kind == ScorerKind::kStreaming;
    EXPECT_THAT(run.scores, SizeIs(streaming ? 0 : 6 * 130));
    const bool critical = policy.selector.kind == SelectorKind::kCritical;
    const bool product = critical && policy.selector.gqa_product;
    EXPECT_THAT(run.value_norms, SizeIs(critical && !product ? 6 * 130 : 0));
    EXPECT_THAT(run.products, SizeIs(product ? 6 * 130 : 0));
  }
}

// Statistics of the same queries, in a table and not.
TEST(RunPolicyTest, ATableOfItsOwnQueriesGivesTheSameScores) {
  Tensors tensors = MakeSyntheticTensors(kRunnerShape, 6);
  ASSERT_OK_AND_ASSIGN(
      const PolicyRun own,
      RunPolicy(*ParseParityPolicy("expected_attention(n_sink=0)"), Keep("0.3"),
                tensors, {}));
  QueryStatsBuilder builder(3, 6, 16);
  for (int32_t layer = 0; layer < 3; ++layer) {
    const LayerTensors& of_layer = tensors.layers[Unsigned(layer)];
    const std::vector<float>& by_head =
        of_layer.raw_queries.empty() ? of_layer.queries : of_layer.raw_queries;
    for (size_t position = 0; position < 130; ++position) {
      std::vector<float> token;
      for (size_t head = 0; head < 6; ++head) {
        const float* row = &by_head[(head * 130 + position) * 16];
        token.insert(token.end(), row, row + 16);
      }
      builder.AddQueries(layer, token);
    }
  }
  const ParityPolicy policy =
      *ParseParityPolicy("expected_attention(n_sink=0,stats=own)");
  EXPECT_THAT(RunPolicy(policy, Keep("0.3"), tensors, {}),
              IsInvalid("expected query statistics"));
  ASSERT_OK_AND_ASSIGN(const QueryStatsTable table, builder.Finish(""));
  PolicyRunOptions options;
  options.query_stats = &table;
  // Nobody reads queries then.
  for (LayerTensors& layer : tensors.layers) {
    layer.queries.clear();
    layer.raw_queries.clear();
    layer.output_projection.clear();
  }
  tensors.num_q_heads = tensors.num_heads;
  ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                       RunPolicy(policy, Keep("0.3"), tensors, options));
  ASSERT_THAT(run.scores, SizeIs(own.scores.size()));
  for (size_t i = 0; i < own.scores.size(); ++i) {
    ASSERT_NEAR(run.scores[i], own.scores[i], 1e-4 * own.scores[i]) << i;
  }
  tensors.head_dim = 8;
  for (LayerTensors& layer : tensors.layers) {
    layer.keys.resize(layer.keys.size() / 2);
    layer.values.resize(layer.values.size() / 2);
  }
  EXPECT_THAT(RunPolicy(policy, Keep("0.3"), tensors, options),
              IsInvalid("expected 3 layers of 6 query heads of 8 "
                        "elements, got 3 layers of 6 query heads of "
                        "16 elements"));
}

// Pages are where entries lie, not what they are worth.
TEST(RunPolicyTest, DependsOnNoPageSizeUnderRoundToken) {
  const Tensors tensors = MakeSyntheticTensors(kRunnerShape, 2);
  for (const char* text : kPolicies) {
    SCOPED_TRACE(text);
    ParityPolicy policy = *ParseParityPolicy(text);
    policy.rounding = Rounding::kToken;
    PolicyRunOptions options;
    ASSERT_OK_AND_ASSIGN(const PolicyRun a,
                         RunPolicy(policy, Keep("0.3"), tensors, options));
    options.page_size = 5;
    ASSERT_OK_AND_ASSIGN(const PolicyRun b,
                         RunPolicy(policy, Keep("0.3"), tensors, options));
    EXPECT_EQ(a.keep.ranks, b.keep.ranks);
    EXPECT_EQ(a.scores, b.scores);
    EXPECT_EQ(a.value_norms, b.value_norms);
  }
}

// Budgets per layer: every layer by itself gives the same. (random and pyramid
// know which layer it is.)
TEST(RunPolicyTest, RunsLayersIndependently) {
  const Tensors tensors = MakeSyntheticTensors(kRunnerShape, 3);
  for (const char* text :
       {"snapkv(window=8) | adakv | critical", "h2o | adakv", "tova",
        "keydiff | adakv(mode=floor)", "expected_attention", "streaming"}) {
    SCOPED_TRACE(text);
    const ParityPolicy policy = *ParseParityPolicy(text);
    ASSERT_OK_AND_ASSIGN(const PolicyRun all,
                         RunPolicy(policy, Keep("0.3"), tensors, {}));
    for (size_t layer = 0; layer < 3; ++layer) {
      Tensors one = tensors;
      one.layers = {tensors.layers[layer]};
      ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                           RunPolicy(policy, Keep("0.3"), one, {}));
      for (size_t head = 0; head < 2; ++head) {
        EXPECT_EQ(KeptOf(run, head), KeptOf(all, 2 * layer + head));
      }
    }
  }
}

TEST(RunPolicyTest, StoresInTheTypeAskedFor) {
  SyntheticShape shape = kRunnerShape;
  shape.num_layers = 1;
  const Tensors tensors = MakeSyntheticTensors(shape, 4);
  const ParityPolicy policy = *ParseParityPolicy("knorm");
  ASSERT_OK_AND_ASSIGN(const PolicyRun fine,
                       RunPolicy(policy, Keep("0.3"), tensors, {}));
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    PolicyRunOptions options;
    options.dtype = dtype;
    ASSERT_OK_AND_ASSIGN(const PolicyRun rough,
                         RunPolicy(policy, Keep("0.3"), tensors, options));
    EXPECT_NE(rough.scores, fine.scores);
    Tensors stored = tensors;
    for (float& value : stored.layers[0].keys) {
      value = dtype == DType::kBFloat16 ? FromBFloat16(ToBFloat16(value))
                                        : FromFloat16(ToFloat16(value));
    }
    ASSERT_OK_AND_ASSIGN(const PolicyRun rounded,
                         RunPolicy(policy, Keep("0.3"), stored, {}));
    EXPECT_EQ(rough.keep.ranks, rounded.keep.ranks);
    for (size_t i = 0; i < rough.scores.size(); ++i) {
      EXPECT_NEAR(rough.scores[i], rounded.scores[i], 1e-5);
    }
  }
}

Tensors ScoresOnly(std::vector<float> scores, int32_t num_heads) {
  Tensors tensors;
  tensors.num_q_heads = tensors.num_heads = num_heads;
  tensors.length = static_cast<int32_t>(scores.size()) / num_heads;
  tensors.layers.emplace_back().scores = std::move(scores);
  return tensors;
}

TEST(RunPolicyTest, TakesExternalScoresAndBudgets) {
  const Tensors tensors = ScoresOnly({1, 9, 5, 3, 8, 2, 7, 4}, 2);
  PolicyRunOptions options;
  options.budgets = {3, 1};
  const ParityPolicy policy =
      *ParseParityPolicy("external | external | topk | round(token)");
  ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                       RunPolicy(policy, Keep("0.5"), tensors, options));
  EXPECT_THAT(run.budgets, ElementsAre(3, 1));
  EXPECT_THAT(KeptOf(run, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(KeptOf(run, 1), ElementsAre(0));
  options.budgets = {3};
  EXPECT_THAT(RunPolicy(policy, Keep("0.5"), tensors, options),
              IsInvalid("budgets: expected 2"));
}

TEST(RunPolicyTest, TakesBudgetsOfATable) {
  const Tensors tensors = ScoresOnly(std::vector<float>(200, 1.0f), 2);
  const ParityPolicy policy = *ParseParityPolicy(
      "external | headkv(profile=mine) | topk | round(token)");
  EXPECT_THAT(RunPolicy(policy, Keep("0.2"), tensors, {}),
              IsInvalid("table: expected one, for headkv"));
  ASSERT_OK_AND_ASSIGN(const HeadScores scores,
                       HeadScores::FromJson(R"({"num_layers": 1,
                         "num_heads": 2, "scores": [[3, 1]]})"));
  const BudgetTable table = scores;
  PolicyRunOptions options;
  options.table = &table;
  ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                       RunPolicy(policy, Keep("0.2"), tensors, options));
  EXPECT_EQ(run.budgets[0] + run.budgets[1], 40);
  EXPECT_GT(run.budgets[0], run.budgets[1]);
  Tensors wider = tensors;
  wider.num_heads = wider.num_q_heads = 4;
  wider.length = 50;
  EXPECT_FALSE(RunPolicy(policy, Keep("0.2"), wider, options).ok());
}

TEST(RunPolicyTest, RefusesWhatItCannotRun) {
  const Tensors tensors = ScoresOnly({1, 2, 3, 4}, 1);
  const ParityPolicy policy = *ParseParityPolicy("external");
  PolicyRunOptions options;
  options.page_size = 0;
  EXPECT_THAT(RunPolicy(policy, Keep("0.5"), tensors, options),
              IsInvalid("page_size: expected"));
  EXPECT_THAT(RunPolicy(policy, KeepTokens(0), tensors, {}),
              IsInvalid("tokens: expected at least 1"));
  EXPECT_THAT(
      RunPolicy(*ParseParityPolicy("keydiff"), Keep("0.5"), tensors, {}),
      IsInvalid("keys"));
  EXPECT_THAT(RunPolicy(policy, Keep("0.5"), Tensors(), {}),
              IsInvalid("at least one layer"));
  ParityPolicy invalid = policy;
  invalid.protect.sinks = -1;
  EXPECT_THAT(RunPolicy(invalid, Keep("0.5"), tensors, {}), IsInvalid("sinks"));
}

// A score that depends on its entry alone: block by block, the best of the best
// are the best of all.
TEST(RunPolicyByBlocksTest, FindsTheBestOfAllWhereScoresAreFixed) {
  const Tensors tensors = MakeSyntheticTensors(kRunnerShape, 5);
  for (const char* text :
       {"knorm | uniform | topk | round(token)",
        "random | uniform | topk | round(token)",
        "streaming | uniform | topk | round(token)",
        "knorm | uniform | topk | protect(sinks=3,recent=4) | round(token)"}) {
    const ParityPolicy policy = *ParseParityPolicy(text);
    ASSERT_OK_AND_ASSIGN(const PolicyRun all,
                         RunPolicy(policy, KeepTokens(37), tensors, {}));
    for (const int32_t block : {1, 10, 93, 1000}) {
      SCOPED_TRACE(absl::StrCat(text, ", blocks of ", block));
      ASSERT_OK_AND_ASSIGN(
          const PolicyRun run,
          RunPolicyByBlocks(policy, KeepTokens(37), tensors, block, {}));
      EXPECT_THAT(run.budgets, Each(37));
      // Recent entries stay until they are old, and are lost then: only the
      // one block of all is the same with them.
      if (policy.protect.recent > 0 && block < 93) continue;
      EXPECT_EQ(run.keep.ranks, all.keep.ranks);
      EXPECT_EQ(run.keep.offsets, all.keep.offsets);
    }
  }
}

// Sums of H2O where queries see only what was kept before them, in float64.
std::vector<int32_t> NaiveH2oByBlocks(const Tensors& tensors, size_t layer,
                                      int32_t head, int32_t keep,
                                      int32_t block) {
  const int32_t group = kRunnerShape.num_q_heads / kRunnerShape.num_heads;
  std::vector<double> sums(static_cast<size_t>(kRunnerShape.length));
  std::vector<int32_t> held;
  int32_t end = 0;
  for (int32_t begin = 0; begin < kRunnerShape.length; begin = end) {
    end = std::min(begin + (begin == 0 ? keep : block), kRunnerShape.length);
    for (int32_t query = begin; query < end; ++query) {
      held.push_back(query);
      for (int32_t q_head = head * group; q_head < (head + 1) * group;
           ++q_head) {
        const std::vector<double> weights =
            NaiveAttention(tensors, layer, q_head, query, held);
        for (size_t i = 0; i < held.size(); ++i) {
          sums[static_cast<size_t>(held[i])] += weights[i];
        }
      }
    }
    if (begin == 0) continue;
    std::stable_sort(held.begin(), held.end(), [&](int32_t a, int32_t b) {
      return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
    });
    held.resize(static_cast<size_t>(keep));
    std::sort(held.begin(), held.end());
  }
  return held;
}

TEST(RunPolicyByBlocksTest, QueriesSeeOnlyWhatWasKept) {
  for (const uint64_t seed : {6, 7, 8}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Tensors tensors = MakeSyntheticTensors(kRunnerShape, seed);
    const ParityPolicy policy =
        *ParseParityPolicy("h2o | uniform | topk | round(token)");
    ASSERT_OK_AND_ASSIGN(
        const PolicyRun run,
        RunPolicyByBlocks(policy, KeepTokens(30), tensors, 16, {}));
    for (size_t layer = 0; layer < 3; ++layer) {
      for (int32_t head = 0; head < 2; ++head) {
        EXPECT_EQ(KeptOf(run, 2 * layer + static_cast<size_t>(head)),
                  NaiveH2oByBlocks(tensors, layer, head, 30, 16));
      }
    }
  }
}

TEST(RunPolicyByBlocksTest, KeepsAllOfWhatFits) {
  const Tensors tensors = MakeSyntheticTensors(kRunnerShape, 9);
  ASSERT_OK_AND_ASSIGN(const PolicyRun run,
                       RunPolicyByBlocks(*ParseParityPolicy("keydiff"),
                                         KeepTokens(130), tensors, 16, {}));
  EXPECT_THAT(run.budgets, Each(130));
  EXPECT_THAT(run.scores, IsEmpty());
}

TEST(RunPolicyByBlocksTest, RefusesRatiosAndEmptyBlocks) {
  const Tensors tensors = ScoresOnly({1, 2, 3, 4}, 1);
  const ParityPolicy policy = *ParseParityPolicy("external");
  EXPECT_THAT(RunPolicyByBlocks(policy, Keep("0.5"), tensors, 2, {}),
              IsInvalid("expected a number of tokens"));
  EXPECT_THAT(RunPolicyByBlocks(policy, KeepTokens(2), tensors, 0, {}),
              IsInvalid("block: expected at least 1, got 0"));
}

}  // namespace
}  // namespace blockmgr
