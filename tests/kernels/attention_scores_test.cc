// TOVA, H2O and the running sums of H2O against float64 references. SnapKV:
// snapkv_test.cc.

#include "kernels/cpu/attention_scores.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class AttentionScoresTest : public testing::TestWithParam<DType> {};

// Sum over the window and the group, per entry.
std::vector<double> NaiveSums(const ScoreCase& test) {
  const ModelLayout& layout = test.model.layout();
  std::vector<double> sums(test.size());
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    for (int32_t g = 0; g < layout.group_size(); ++g) {
      for (int32_t i = 0; i < test.num_queries; ++i) {
        const std::vector<double> weights = NaiveWeights(test, head, g, i);
        for (std::size_t j = 0; j < weights.size(); ++j) {
          sums[test.offsets[head] + j] += weights[j];
        }
      }
    }
  }
  return sums;
}

TEST_P(AttentionScoresTest, TovaMatchesNaiveScores) {
  for (uint64_t seed = 0; seed < SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 150);
    const ScoreCase test(layout,
                         {.window = 1,
                          .length = RandomInt(rng, 1, 150),
                          .whole_window = seed % 2 == 0},
                         seed + 100);
    std::map<int32_t, double> by_position;
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      for (int32_t g = 0; g < layout.group_size(); ++g) {
        const std::vector<double> weights = NaiveWeights(test, head, g, 0);
        for (std::size_t j = 0; j < weights.size(); ++j) {
          by_position[test.positions[test.offsets[head] + j]] +=
              weights[j] / layout.num_q_heads;
        }
      }
    }
    const std::vector<float> scores =
        test.Run(*test.model.MakeBackend(), {.kind = ScorerKind::kTova});
    for (int64_t e = 0; e < test.size(); ++e) {
      if (test.positions[e] == test.length - 1) {
        ASSERT_EQ(scores[e], kInfinity);
      } else {
        const double expected = by_position[test.positions[e]];
        ASSERT_NEAR(scores[e], expected, 1e-5 * expected + 1e-9);
      }
    }
  }
}

TEST_P(AttentionScoresTest, TovaProductsMatchNaiveProducts) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 80);
    const ScoreCase test(
        layout, {.window = 1, .length = 80, .whole_window = seed % 2 == 0},
        seed + 300);
    ExpectProductsMatch(test, {.kind = ScorerKind::kTova}, rng,
                        [&](int32_t head, int32_t g) {
                          return NaiveWeights(test, head, g, 0);
                        });
  }
}

TEST_P(AttentionScoresTest, H2oOfAWindowMatchesNaiveScores) {
  for (uint64_t seed = 0; seed < SlowCases(24); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 180);
    const int32_t num_queries = RandomInt(rng, 1, 40);
    const ScoreCase test(layout,
                         {.window = num_queries,
                          .length = num_queries + RandomInt(rng, 0, 140),
                          .whole_window = seed % 2 == 0},
                         seed + 400);
    const std::vector<double> sums = NaiveSums(test);
    const auto backend = test.model.MakeBackend();
    for (const H2oNorm norm : {H2oNorm::kNone, H2oNorm::kCount}) {
      const std::vector<float> scores = test.Run(
          *backend,
          {.kind = ScorerKind::kH2o, .norm = norm, .obs_window = num_queries});
      for (int64_t e = 0; e < test.size(); ++e) {
        double expected = sums[e] / layout.group_size();
        if (norm == H2oNorm::kCount) {
          expected /= std::min(num_queries, test.length - test.positions[e]);
        }
        ASSERT_NEAR(scores[e], expected, 1e-5 * expected + 1e-9);
      }
    }
  }
}

TEST_P(AttentionScoresTest, H2oOfAllQueriesMatchesNaiveScores) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 70);
    // Every token is a query, in one call.
    const ScoreCase test(
        layout, {.window = 70, .length = 70, .everything = true}, seed + 500);
    const std::vector<double> naive = NaiveSums(test);
    const auto backend = test.model.MakeBackend();
    std::vector<float> sums(test.size());
    backend->AddAttention({.scale = test.scale,
                           .entries = test.Entries(),
                           .window = test.Window(),
                           .sums = sums});
    for (const H2oNorm norm : {H2oNorm::kNone, H2oNorm::kCount}) {
      std::vector<float> scores(test.size());
      ScoreBatch batch = test.Batch({.kind = ScorerKind::kH2o, .norm = norm});
      batch.window = {.length = test.length};
      batch.attention_sums = sums;
      batch.scores = scores;
      backend->Score(batch);
      for (int64_t e = 0; e < test.size(); ++e) {
        double expected = naive[e] / layout.group_size();
        if (norm == H2oNorm::kCount) {
          expected /= test.length - test.positions[e];
        }
        ASSERT_NEAR(scores[e], expected, 1e-5 * expected + 1e-9);
      }
    }
  }
}

// The entries of a case that are there when its first `length` tokens are.
struct Prefix {
  Prefix(const ScoreCase& test, int32_t length) {
    for (int32_t head = 0; head < test.model.layout().num_heads; ++head) {
      for (int64_t e = test.offsets[head]; e < test.offsets[head + 1]; ++e) {
        if (test.positions[e] >= length) break;
        entries.push_back(e);
        slots.push_back(test.slots[e]);
        positions.push_back(test.positions[e]);
      }
      offsets.push_back(std::ssize(slots));
    }
  }
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> entries;
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
};

TEST_P(AttentionScoresTest, SumsDoNotDependOnHowQueriesAreSplit) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 150);
    const ScoreCase test(
        layout, {.window = 150, .length = 150, .everything = true}, seed + 600);
    const auto backend = test.model.MakeBackend();
    std::vector<float> expected(test.size());
    backend->AddAttention({.scale = test.scale,
                           .entries = test.Entries(),
                           .window = test.Window(),
                           .sums = expected});
    std::vector<float> sums(test.size());
    for (int32_t begin = 0; begin < 150;) {
      const int32_t count =
          std::min(150 - begin, RandomInt(rng, 1, seed % 2 == 0 ? 3 : 60));
      const Prefix prefix(test, begin + count);
      std::vector<float> part;
      for (const int64_t e : prefix.entries) part.push_back(sums[e]);
      const float* queries =
          &test.queries[int64_t{begin} * layout.num_q_heads * layout.head_dim];
      backend->AddAttention({.scale = test.scale,
                             .entries = {.offsets = prefix.offsets,
                                         .slots = prefix.slots,
                                         .positions = prefix.positions},
                             .window = {.queries = queries,
                                        .count = count,
                                        .length = begin + count},
                             .sums = part});
      for (std::size_t i = 0; i < part.size(); ++i) {
        sums[prefix.entries[i]] = part[i];
      }
      begin += count;
    }
    ASSERT_EQ(sums, expected);
  }
}

TEST_P(AttentionScoresTest, ScoresDoNotDependOnWhatWasScoredBefore) {
  Rng rng(7);
  const ModelLayout layout = LayoutFor(rng, GetParam(), 200);
  const ScoreCase test(layout, {.window = 1, .length = 90}, 8);
  const ScoreCase other(layout, {.window = 33, .length = 200}, 9);
  const auto backend = test.model.MakeBackend();
  // Slots of the other case may hold NaN here.
  for (const ScorerKind kind : {ScorerKind::kTova, ScorerKind::kH2o}) {
    const ScorerSpec scorer{.kind = kind, .obs_window = 1};
    const std::vector<float> before = test.Run(*backend, scorer);
    other.Run(*backend, {.window = 33});
    EXPECT_EQ(test.Run(*backend, scorer), before);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionScoresTest,
                         testing::ValuesIn(kEveryDType), DTypeParamName);

}  // namespace
}  // namespace blockmgr
