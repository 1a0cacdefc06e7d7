// KeyDiff and Knorm against float64 references written from the definitions.

#include "kernels/cpu/key_scores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Norm(const Vector& a) { return std::sqrt(Dot(a, a)); }

Vector Normalized(Vector a) {
  const double norm = std::max(Norm(a), 1e-12);
  for (double& x : a) x /= norm;
  return a;
}

double Cosine(const Vector& a, const Vector& b) {
  return Dot(a, b) / (std::max(Norm(a), 1e-8) * std::max(Norm(b), 1e-8));
}

Vector Mean(const Matrix& rows) {
  Vector mean(rows[0].size());
  for (const Vector& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) mean[i] += row[i];
  }
  for (double& x : mean) x /= static_cast<double>(rows.size());
  return mean;
}

Vector Median(const Matrix& rows) {
  Vector median;
  const std::size_t n = rows.size();
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    Vector channel;
    for (const Vector& row : rows) channel.push_back(row[i]);
    std::ranges::sort(channel);
    median.push_back((channel[(n - 1) / 2] + channel[n / 2]) / 2.0);
  }
  return median;
}

Vector NaiveKeyDiff(const ScorerSpec& scorer, const Matrix& keys) {
  Vector scores;
  if (scorer.anchor == KeyDiffAnchor::kPairwise) {
    for (const Vector& key : keys) {
      double sum = 0.0;
      for (const Vector& other : keys) sum += Cosine(key, other);
      scores.push_back(-sum / static_cast<double>(keys.size()));
    }
    return scores;
  }
  Matrix rows = keys;
  if (scorer.anchor != KeyDiffAnchor::kRaw) {
    std::ranges::transform(rows, rows.begin(), Normalized);
  }
  const Vector anchor =
      scorer.anchor == KeyDiffAnchor::kMedian ? Median(rows) : Mean(rows);
  for (const Vector& key : keys) {
    Vector difference = key;
    for (std::size_t i = 0; i < key.size(); ++i) difference[i] -= anchor[i];
    scores.push_back(scorer.metric == KeyDiffMetric::kCosine
                         ? -Cosine(key, anchor)
                     : scorer.metric == KeyDiffMetric::kDot ? -Dot(key, anchor)
                                                            : Norm(difference));
  }
  return scores;
}

Matrix KeysOf(const ScoreCase& test, int32_t head) {
  Matrix keys;
  for (int64_t e = test.offsets[head]; e < test.offsets[head + 1]; ++e) {
    keys.emplace_back(test.key(e).begin(), test.key(e).end());
  }
  return keys;
}

// How large the terms of a score are: what its rounding is relative to.
double Size(const ScorerSpec& scorer, const Matrix& keys) {
  if (scorer.metric == KeyDiffMetric::kCosine) return 1.0;
  double size = 0.0;
  for (const Vector& key : keys) size = std::max(size, Norm(key));
  return scorer.metric == KeyDiffMetric::kDot ? size * size : size;
}

std::vector<ScorerSpec> EveryKeyDiff() {
  std::vector<ScorerSpec> scorers;
  for (const KeyDiffAnchor anchor :
       {KeyDiffAnchor::kNormalized, KeyDiffAnchor::kRaw, KeyDiffAnchor::kMedian,
        KeyDiffAnchor::kPairwise}) {
    for (const KeyDiffMetric metric :
         {KeyDiffMetric::kCosine, KeyDiffMetric::kDot,
          KeyDiffMetric::kEuclidean}) {
      if (anchor == KeyDiffAnchor::kPairwise &&
          metric != KeyDiffMetric::kCosine) {
        continue;
      }
      scorers.push_back(
          {.kind = ScorerKind::kKeyDiff, .anchor = anchor, .metric = metric});
    }
  }
  return scorers;
}

class KeyScoresTest : public testing::TestWithParam<DType> {};

TEST_P(KeyScoresTest, KeyDiffMatchesNaiveScores) {
  for (uint64_t seed = 0; seed < SlowCases(12); ++seed) {
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 300);
    ScoreCase test(layout,
                   {.length = RandomInt(rng, 1, 300), .whole_window = false},
                   seed + 100);
    // Keys of one head go one way, as real ones do, and some are zero.
    for (int64_t e = 0; e < test.size(); ++e) {
      for (float& x : test.model.key(test.slots[e])) {
        x = e % 37 == 5 ? 0.0f : Stored(x + 0.7f, GetParam());
      }
    }
    const auto backend = test.model.MakeBackend();
    for (const ScorerSpec& scorer : EveryKeyDiff()) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " " << EnumName(scorer.anchor) << " "
                   << EnumName(scorer.metric));
      const std::vector<float> scores = test.Run(*backend, scorer);
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const Matrix keys = KeysOf(test, head);
        if (keys.empty()) continue;
        const Vector expected = NaiveKeyDiff(scorer, keys);
        const double size = Size(scorer, keys);
        for (std::size_t j = 0; j < keys.size(); ++j) {
          ASSERT_NEAR(scores[test.offsets[head] + j], expected[j], 2e-6 * size)
              << "head " << head << " entry " << j;
        }
      }
    }
  }
}

// Lengths below 1e-8 count as that in a cosine, below 1e-12 in an anchor.
TEST_P(KeyScoresTest, ShortKeysAreClamped) {
  Rng rng(6);
  const ModelLayout layout = LayoutFor(rng, GetParam(), 60);
  for (const float longest : {1e-8f, 1e-10f, 1e-13f}) {
    ScoreCase test(layout, {.length = 60}, 7);
    for (int64_t e = 0; e < test.size(); ++e) {
      const float size = longest * (e % 3 == 0 ? 1.0f : 0.01f);
      for (float& x : test.model.key(test.slots[e])) {
        x = Stored((x + 1.0f) * size, GetParam());
      }
    }
    const auto backend = test.model.MakeBackend();
    for (const ScorerSpec& scorer : EveryKeyDiff()) {
      if (scorer.metric != KeyDiffMetric::kCosine) continue;
      SCOPED_TRACE(testing::Message()
                   << longest << " " << EnumName(scorer.anchor));
      const std::vector<float> scores = test.Run(*backend, scorer);
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const Vector expected = NaiveKeyDiff(scorer, KeysOf(test, head));
        double size = 0.0;
        for (const double x : expected) size = std::max(size, std::abs(x));
        for (std::size_t j = 0; j < expected.size(); ++j) {
          ASSERT_NEAR(scores[test.offsets[head] + j], expected[j], 2e-6 * size);
        }
      }
    }
  }
}

// An fp32 sum over so many rows would lose what they differ in.
TEST_P(KeyScoresTest, AnchorOfManyKeysIsExact) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 1,
                           .num_q_heads = 1,
                           .head_dim = 8,
                           .page_size = 16,
                           .dtype = GetParam(),
                           .num_blocks = 8000};
  ScoreCase test(layout, {.length = 120000, .everything = true}, 3);
  for (const SlotIndex slot : test.slots) {
    for (float& x : test.model.key(slot)) x = Stored(x + 3.0f, GetParam());
  }
  const Matrix keys = KeysOf(test, 0);
  const auto backend = test.model.MakeBackend();
  for (const ScorerSpec& scorer : EveryKeyDiff()) {
    if (scorer.anchor == KeyDiffAnchor::kPairwise) continue;
    SCOPED_TRACE(testing::Message()
                 << EnumName(scorer.anchor) << " " << EnumName(scorer.metric));
    const std::vector<float> scores = test.Run(*backend, scorer);
    const Vector expected = NaiveKeyDiff(scorer, keys);
    const double size = Size(scorer, keys);
    double error = 0.0;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      error = std::max(error, std::abs(scores[j] - expected[j]));
    }
    EXPECT_LE(error, 5e-7 * size);
  }
}

TEST_P(KeyScoresTest, NaNKeyIsInEveryScoreOfItsHeadOnly) {
  Rng rng(4);
  ModelLayout layout = LayoutFor(rng, GetParam(), 100);
  layout.num_heads = 2;
  layout.num_q_heads = 2;
  ScoreCase test(layout, {.length = 100}, 5);
  test.model.key(test.slots[test.offsets[1] + 70])[0] = std::nanf("");
  const auto backend = test.model.MakeBackend();
  for (ScorerSpec scorer : EveryKeyDiff()) {
    // One NaN in a median is in one channel, but so it is in the products.
    const std::vector<float> scores = test.Run(*backend, scorer);
    for (int64_t e = 0; e < test.size(); ++e) {
      EXPECT_EQ(std::isnan(scores[e]), e >= test.offsets[1])
          << EnumName(scorer.anchor) << " " << EnumName(scorer.metric);
    }
  }
}

TEST_P(KeyScoresTest, KnormMatchesNaiveScores) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = LayoutFor(rng, GetParam(), 200);
    ScoreCase test(layout, {.length = 200, .whole_window = false}, seed + 200);
    test.model.key(test.slots[3])[7] = std::nanf("");
    const std::vector<float> scores =
        test.Run(*test.model.MakeBackend(), {.kind = ScorerKind::kKnorm});
    for (int64_t e = 0; e < test.size(); ++e) {
      if (e == 3) {
        EXPECT_TRUE(std::isnan(scores[e]));
        continue;
      }
      const double norm = Norm(Vector(test.key(e).begin(), test.key(e).end()));
      ASSERT_NEAR(scores[e], -norm, 1e-6 * norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, KeyScoresTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
