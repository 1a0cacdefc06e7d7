// Expected Attention against a float64 reference written from the definition:
// rotations position by position, moments in two passes, matrices in full.

#include "kernels/cpu/expected_attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cpu/query_stats.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/score_cases.h"

namespace blockmgr {
namespace {

using Vector = std::vector<double>;

Matrix MeanRotationMatrix(const std::vector<double>& frequencies, int64_t first,
                          int64_t count) {
  const std::size_t half = frequencies.size();
  Matrix r(2 * half, Vector(2 * half));
  for (std::size_t i = 0; i < half; ++i) {
    for (int64_t p = first; p < first + count; ++p) {
      const double angle = static_cast<double>(p) * frequencies[i];
      const double c = std::cos(angle) / static_cast<double>(count);
      const double s = std::sin(angle) / static_cast<double>(count);
      r[i][i] += c;
      r[i + half][i + half] += c;
      r[i][i + half] -= s;
      r[i + half][i] += s;
    }
  }
  return r;
}

Matrix Multiply(const Matrix& a, const Matrix& b, bool transpose_b) {
  const std::size_t n = a.size();
  Matrix c(n, Vector(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < n; ++k) {
        c[i][j] += a[i][k] * (transpose_b ? b[j][k] : b[k][j]);
      }
    }
  }
  return c;
}

// Queries before rotation of all positions from n_sink on.
struct ExpectedCase {
  ExpectedCase(DType dtype, int32_t length, const ScorerSpec& spec,
               uint64_t seed)
      : scorer(spec),
        rng(seed),
        layout(LayoutFor(rng, dtype, length)),
        test(layout, {.length = length, .whole_window = false}, seed + 1),
        num_queries(length - scorer.n_sink) {
    scorer.kind = ScorerKind::kExpectedAttention;
    test.scale = static_cast<float>(1.0 / std::sqrt(layout.head_dim));
    const int32_t half = layout.head_dim / 2;
    for (int32_t i = 0; i < half; ++i) {
      frequencies.push_back(std::pow(1e4, -i / static_cast<double>(half)));
    }
    queries = RandomFloats(
        rng, int64_t{num_queries} * layout.num_q_heads * layout.head_dim);
    for (float& x : queries) x += 0.3f;
  }

  std::vector<float> Run() const {
    QueryStatistics statistics;
    test.model.MakeBackend()->AddQueries(queries.data(), num_queries,
                                         &statistics);
    return RunWith(statistics);
  }
  // With a table of query statistics that was measured on the same queries.
  std::vector<float> RunByTable() const {
    QueryStatsBuilder builder(1, layout.num_q_heads, layout.head_dim);
    builder.AddQueries(0, queries);
    return RunWith(StatisticsOf(*builder.Finish(""), 0, 0, layout.num_q_heads));
  }
  std::vector<float> RunWith(const QueryStatistics& statistics) const {
    const auto backend = test.model.MakeBackend();
    std::vector<float> scores(test.size(), -1.0f);
    ScoreBatch batch = test.Batch(scorer);
    batch.window = {.length = test.length};
    batch.statistics = &statistics;
    batch.inverse_frequencies = frequencies;
    batch.scores = scores;
    backend->Score(batch);
    return scores;
  }

  double Query(int64_t token, int64_t q_head, int64_t i) const {
    return queries[(token * layout.num_q_heads + q_head) * layout.head_dim + i];
  }

  ScorerSpec scorer;
  Rng rng;
  ModelLayout layout;
  ScoreCase test;
  int32_t num_queries;
  std::vector<double> frequencies;
  std::vector<float> queries;
};

// z of one query head for the head's entries from `first` on.
Vector NaiveLogits(const ExpectedCase& c, int64_t q_head, int64_t first,
                   int64_t end) {
  const int64_t dim = c.layout.head_dim;
  Vector mean(dim);
  Matrix covariance(dim, Vector(dim));
  for (int64_t t = 0; t < c.num_queries; ++t) {
    for (int64_t i = 0; i < dim; ++i) {
      mean[i] += c.Query(t, q_head, i) / c.num_queries;
    }
  }
  for (int64_t t = 0; t < c.num_queries; ++t) {
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t j = 0; j < dim; ++j) {
        covariance[i][j] += (c.Query(t, q_head, i) - mean[i]) *
                            (c.Query(t, q_head, j) - mean[j]) / c.num_queries;
      }
    }
  }
  const Matrix r =
      MeanRotationMatrix(c.frequencies, c.test.length, c.scorer.n_future);
  covariance = Multiply(Multiply(r, covariance, false), r, true);
  Vector turned(dim);
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < dim; ++j) turned[i] += r[i][j] * mean[j];
  }
  Vector logits;
  for (int64_t e = first; e < end; ++e) {
    double z = 0.0;
    for (int64_t i = 0; i < dim; ++i) {
      const double k = c.test.key(e)[i];
      z += turned[i] * k * c.test.scale;
      for (int64_t j = 0; j < dim && c.scorer.cov; ++j) {
        z += k * covariance[i][j] * c.test.key(e)[j] / 2.0 * c.test.scale *
             c.test.scale;
      }
    }
    logits.push_back(z);
  }
  return logits;
}

void ExpectNaiveScores(const ExpectedCase& c,
                       const std::vector<float>& scores) {
  for (int32_t head = 0; head < c.layout.num_heads; ++head) {
    const int64_t end = c.test.offsets[head + 1];
    int64_t first = c.test.offsets[head];
    for (; first < end && c.test.positions[first] < c.scorer.n_sink; ++first) {
      ASSERT_EQ(scores[first], std::numeric_limits<float>::infinity());
    }
    Vector expected(end - first);
    const int32_t group_size = c.layout.group_size();
    for (int32_t g = 0; g < group_size; ++g) {
      const Vector weights =
          NaiveSoftmax(NaiveLogits(c, head * group_size + g, first, end));
      for (std::size_t j = 0; j < expected.size(); ++j) {
        expected[j] += weights[j] / group_size;
      }
    }
    for (int64_t e = first; e < end; ++e) {
      double score = expected[e - first];
      if (c.scorer.vnorm) {
        double square = 0.0;
        for (const float x : c.test.value(e)) square += double{x} * double{x};
        score = (score + c.scorer.eps) * std::sqrt(square);
      }
      ASSERT_NEAR(scores[e], score, 2e-5 * score) << "head " << head;
    }
  }
}

class ExpectedAttentionTest : public testing::TestWithParam<DType> {};

TEST_P(ExpectedAttentionTest, MatchesNaiveScores) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    ScorerSpec scorer;
    scorer.n_future = seed % 3 == 0 ? 1 : 512;
    scorer.n_sink = static_cast<int32_t>(seed % 5);
    scorer.cov = seed % 2 == 0;
    scorer.vnorm = seed % 4 < 2;
    scorer.eps = seed < 4 ? 0.02 : 0.0;
    const ExpectedCase c(GetParam(), seed < 2 ? 5 : 90, scorer, seed + 10);
    ExpectNaiveScores(c, c.Run());
    ExpectNaiveScores(c, c.RunByTable());
  }
}

TEST_P(ExpectedAttentionTest, NaNKeyIsInEveryScoreOfItsHeadOnly) {
  ExpectedCase c(GetParam(), 60, {}, 3);
  const int32_t head = c.layout.num_heads - 1;
  int64_t at = -1;
  for (int64_t e = c.test.offsets[head]; e < c.test.offsets[head + 1]; ++e) {
    if (c.test.positions[e] >= c.scorer.n_sink) at = e;
  }
  if (at >= 0) c.test.model.key(c.test.slots[at])[1] = std::nanf("");
  const std::vector<float> scores = c.Run();
  for (int64_t e = 0; e < c.test.size(); ++e) {
    EXPECT_EQ(std::isnan(scores[e]),
              at >= 0 && e >= c.test.offsets[head] &&
                  c.test.positions[e] >= c.scorer.n_sink);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ExpectedAttentionTest,
                         testing::ValuesIn(kEveryDType), DTypeParamName);

}  // namespace
}  // namespace blockmgr
