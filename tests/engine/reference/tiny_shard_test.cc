// The tiny engine on several shards against the same on one, and against naive
// budgets of every shard.

#include "engine/reference/tiny_shard.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kShardModelHeads = 4;
constexpr size_t kAllHeads = 8;  // of both layers

// Four heads of two query heads each, in two layers.
std::shared_ptr<const LanguageModel> ShardModel(uint64_t seed) {
  return RandomModel(ModelShape{.num_layers = 2,
                                .num_q_heads = 2 * kShardModelHeads,
                                .num_heads = kShardModelHeads,
                                .head_dim = 16,
                                .hidden = 64,
                                .mlp = 128,
                                .vocabulary = 64},
                     seed);
}

// What a run shows: logits of every sampled token, and who kept what.
struct Trace {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<int32_t>> kept;  // positions, by eviction and head
};

// A prompt in two chunks, then rounds of eviction and decoding.
Trace RunRounds(int32_t num_shards, const std::string& policy, uint64_t seed,
                DestinationKind kind) {
  std::mt19937_64 random(seed);
  EngineHarness host(ShardModel(seed), DType::kFloat32, 128, num_shards);
  host.Start(0, RandomTokens(150, 64, &random));
  host.Schedule(0, 80);
  EXPECT_OK(host.Run());
  host.Schedule(0, 70);
  Trace trace;
  for (const int32_t cut : {144, 176, 208}) {
    host.Evict(0, cut, policy, KeepTokens(cut / 3 / 16 * 16), kind);
    EXPECT_OK(host.Run());
    EXPECT_EQ(host.result().evictions[0].error, "");
    for (size_t head = 0; head < kAllHeads; ++head) {
      trace.kept.push_back(host.evictions().back().KeptPositions(head));
    }
    for (int i = 0; i < 31; ++i) trace.logits.push_back(host.Decode(0));
    host.Schedule(0, 1);
  }
  return trace;
}

class TinyShardTest : public ::testing::TestWithParam<DestinationKind> {};

INSTANTIATE_TEST_SUITE_P(Places, TinyShardTest,
                         ::testing::Values(DestinationKind::kFresh,
                                           DestinationKind::kOwn,
                                           DestinationKind::kMixed));

// What a head keeps is its own matter here, so the split is nobody's: bit for
// bit, attention, scores and moves of a rank are those of the whole model.
TEST_P(TinyShardTest, EqualsOneShardWhereHeadsHaveEqualBudgets) {
  for (const char* policy :
       {"snapkv(window=8) | uniform | topk",
        "streaming(sinks=4) | uniform | topk", "keydiff | uniform | topk",
        "snapkv(window=8) | uniform | critical(gqa_product=true)",
        "knorm | uniform | critical", "random(seed=5) | uniform | topk",
        // The table has the query heads of all shards.
        "expected_attention(n_future=32,stats=measured) | uniform | topk"}) {
    SCOPED_TRACE(policy);
    const Trace whole = RunRounds(1, policy, 3, GetParam());
    for (const int32_t num_shards : {2, 4}) {
      SCOPED_TRACE(num_shards);
      const Trace parts = RunRounds(num_shards, policy, 3, GetParam());
      EXPECT_EQ(parts.kept, whole.kept);
      EXPECT_EQ(parts.logits, whole.logits);
    }
  }
}

// Ada-KV's budgets are shared out among the heads of a shard: with one head in
// each they are equal, whatever the scores.
TEST_P(TinyShardTest, AHeadAloneInItsShardHasTheUniformBudget) {
  const Trace adaptive =
      RunRounds(4, "snapkv(window=8) | adakv(alpha=0) | topk", 9, GetParam());
  const Trace uniform =
      RunRounds(4, "snapkv(window=8) | uniform | topk", 9, GetParam());
  EXPECT_EQ(adaptive.kept, uniform.kept);
  EXPECT_EQ(adaptive.logits, uniform.logits);
  const Trace whole =
      RunRounds(1, "snapkv(window=8) | adakv(alpha=0) | topk", 9, GetParam());
  EXPECT_NE(adaptive.kept, whole.kept);
}

// Every shard's pages sum to its part, whatever the other's scores.
TEST_P(TinyShardTest, AdaptiveBudgetsStayInsideTheShard) {
  const Trace trace =
      RunRounds(2, "snapkv(window=8) | adakv(alpha=0.1) | topk", 4, GetParam());
  bool differs = false;
  for (size_t i = 0; i < trace.kept.size(); i += kAllHeads) {
    const auto cut = static_cast<int32_t>(144 + 32 * (i / 8));
    for (size_t layer = 0; layer < 2; ++layer) {
      for (size_t shard = 0; shard < 2; ++shard) {
        const size_t head = i + layer * 4 + shard * 2;
        const auto pages = [&](size_t h) {
          return CeilDiv(static_cast<int32_t>(trace.kept[h].size()), 16);
        };
        EXPECT_EQ(pages(head) + pages(head + 1), 2 * (cut / 3 / 16));
        differs |= pages(head) != pages(head + 1);
      }
    }
  }
  EXPECT_TRUE(differs);
}

// Every shard obeys its own heads' budgets, and the dense model with what they
// evicted masked computes the same.
TEST_P(TinyShardTest, CallersBudgetsComputeWhatTheDenseModelSays) {
  std::mt19937_64 random(6);
  const auto model = ShardModel(6);
  EngineHarness host(model, DType::kFloat32, 128, 2);
  DenseReference reference(model.get());
  host.Start(0, RandomTokens(100, 64, &random));
  host.Schedule(0, 100);
  const std::vector<int32_t> budgets = {48, 0, 16, 32, 16, 16, 96, 80};
  host.Evict(0, 96, "keydiff | uniform | topk | protect(recent=0)",
             KeepTokens(96), GetParam());
  EvictionOrder& order = host.plan().evictions[0];
  order.policy.budget.kind = BudgetKind::kExternal;
  order.budgets = std::make_shared<const std::vector<int32_t>>(budgets);
  // Pages: 3 + 0 + 1 + 1 of shard 0, 1 + 2 + 6 + 5 of shard 1.
  order.page_total = 14;
  order.shard_page_totals = {5, 14};
  ASSERT_OK(host.Run());
  ASSERT_EQ(host.result().evictions[0].error, "");
  EXPECT_EQ(host.result().evictions[0].counts, budgets);
  reference.Forward(std::span(host.tokens(0)).first(100));
  for (int32_t head = 0; head < 8; ++head) {
    reference.Keep(
        head / 4, head % 4, 96,
        host.evictions()[0].KeptPositions(static_cast<size_t>(head)));
  }
  for (int i = 0; i < 20; ++i) {
    const std::vector<double> expected = reference.Forward(
        host.tokens(0)[static_cast<size_t>(reference.length())]);
    ExpectLogits(host.Decode(0), expected);
  }
}

// One shard's refusal is everybody's: nothing has moved anywhere.
TEST(TinyShardsTest, AnOrderThatOneShardRefusesIsCarriedOutByNone) {
  std::vector<std::vector<std::vector<float>>> runs;
  for (const bool evicts : {false, true}) {
    EngineHarness host(ShardModel(8), DType::kFloat32, 128, 2);
    std::mt19937_64 random(8);
    host.Start(0, RandomTokens(100, 64, &random));
    host.Schedule(0, 100);
    if (evicts) {
      host.Evict(0, 96, "streaming | uniform | topk", KeepTokens(48),
                 DestinationKind::kOwn);
      EvictionOrder& order = host.plan().evictions[0];
      order.shard_page_totals = {order.page_total, order.page_total - 1};
    }
    ASSERT_OK(host.Run());
    if (evicts) {
      EXPECT_THAT(host.result().evictions[0].error,
                  HasSubstr("pages in shard 1"));
    }
    runs.emplace_back();
    for (int i = 0; i < 5; ++i) runs.back().push_back(host.Decode(0));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// Accumulated scores are of every shard's own query heads.
TEST(TinyShardsTest, AccumulatedScoresEqualThoseOfOneShard) {
  for (const ScorerState state :
       {ScorerState::kAttentionSums, ScorerState::kQueryStatistics}) {
    std::vector<std::vector<int32_t>> kept[2];
    for (const int32_t num_shards : {1, 4}) {
      std::mt19937_64 random(5);
      EngineHarness host(ShardModel(5), DType::kFloat32, 128, num_shards);
      host.Start(0, RandomTokens(100, 64, &random));
      const bool sums = state == ScorerState::kAttentionSums;
      for (const int32_t chunk : {40, 60}) {
        host.Schedule(0, chunk);
        if (chunk == 40) {
          host.plan().starts[0].scorer_state = state;
          host.plan().starts[0].state_begin = sums ? 0 : 4;
          ASSERT_OK(host.Run());
        }
      }
      host.Evict(0, 96, sums ? "h2o | uniform" : "expected_attention(n_sink=4)",
                 KeepTokens(48), DestinationKind::kFresh);
      host.plan().evictions[0].policy.budget.kind = BudgetKind::kUniform;
      ASSERT_OK(host.Run());
      ASSERT_EQ(host.result().evictions[0].error, "");
      for (size_t head = 0; head < 8; ++head) {
        kept[num_shards / 4].push_back(host.evictions()[0].KeptPositions(head));
      }
    }
    EXPECT_EQ(kept[0], kept[1]);
  }
}

}  // namespace
}  // namespace blockmgr
