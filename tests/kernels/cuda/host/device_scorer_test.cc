// Scores of the device against the CPU's, from the same entries and queries.
#include "kernels/cuda/host/device_scorer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/policy.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/score_cases.h"

namespace blockmgr {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Both sides have fp32 weights of the same 16-bit rows; sums run in other
// orders.
constexpr double kTolerance = 2e-5;

class DeviceScorerTest : public DeviceTest {};

// One layer of a sequence on both backends.
struct Pair {
  Pair(uint64_t seed, int32_t window, int32_t length, bool whole_window = true)
      : test(LayoutOf(seed, length),
             {.window = window,
              .length = length,
              .whole_window = whole_window,
              .everything = false},
             seed),
        cpu(test.model.MakeBackend()),
        device(MakeDeviceBackend(test.model.layout(), seed)) {
    for (float& x : test.queries) x = Stored(x, test.model.layout().dtype);
    test.model.CopyTo(device.get());
  }

  static ModelLayout LayoutOf(uint64_t seed, int32_t length) {
    Rng rng(seed);
    ModelLayout layout = DeviceLayout(rng, seed, 0);
    layout.num_layers = 1;
    layout.num_blocks = CeilDiv(length, layout.page_size) + 2;
    return layout;
  }

  void Compare(const ScorerSpec& scorer) const {
    ExpectNear(test.Run(*device, scorer), test.Run(*cpu, scorer));
  }
  // Compares what run(backend, out) fills `out`, of NaN, with.
  template <typename Run>
  void CompareRuns(int64_t size, const Run& run) const {
    std::vector<float> got(size, kNan);
    std::vector<float> want(size, kNan);
    run(*device, std::span(got));
    run(*cpu, std::span(want));
    ExpectNear(got, want);
  }
  static void ExpectNear(std::span<const float> got,
                         std::span<const float> want) {
    EXPECT_LE(RelativeError(got, want), kTolerance);
    ExpectEachNear(got, want);
  }
  void CompareValueNorms(ValueNorm norm, int32_t model_dim,
                         bool per_query_head) {
    const ModelLayout& layout = test.model.layout();
    const std::vector<float> projection = RoundedFloats(
        test.rng, layout.dtype,
        int64_t{layout.num_q_heads} * layout.head_dim * model_dim);
    CompareRuns(test.size() * (per_query_head ? layout.group_size() : 1),
                [&](Backend& backend, std::span<float> norms) {
                  backend.ValueNorms({.layer = 0,
                                      .norm = norm,
                                      .entries = test.Entries(),
                                      .output_projection = projection.data(),
                                      .model_dim = model_dim,
                                      .per_query_head = per_query_head,
                                      .norms = norms});
                });
  }

  ScoreCase test;
  std::unique_ptr<Backend> cpu;
  std::unique_ptr<CudaBackend> device;
};

TEST_F(DeviceScorerTest, HasScorersThatReadThePool) {
  const Pair pair(1, 1, 20);
  EXPECT_TRUE(pair.device->HasScorer(ScorerKind::kKnorm));
  EXPECT_FALSE(pair.device->HasScorer(ScorerKind::kStreaming));
}

TEST_F(DeviceScorerTest, SnapKvEqualsTheCpus) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const int32_t window = seed % 2 == 0 ? 8 : 17;
    const Pair pair(seed, window, 60 * TestLengthFactor());
    for (const PoolKind pool : {PoolKind::kMax, PoolKind::kAvg}) {
      for (const PoolOrder order : {PoolOrder::kAdaKv, PoolOrder::kKvPress}) {
        for (const GroupReduce group :
             {GroupReduce::kMean, GroupReduce::kMax}) {
          pair.Compare({.kind = ScorerKind::kSnapKv,
                        .window = window,
                        .pool = pool,
                        .kernel = seed % 2 == 0 ? 5 : 7,
                        .order = order,
                        .group = group});
        }
      }
    }
  }
}

TEST_F(DeviceScorerTest, TovaEqualsTheCpus) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    // Some sequences lack their last token's entries, some heads all but one.
    const Pair pair(seed, 1, 60 * TestLengthFactor(), seed % 2 == 0);
    pair.Compare({.kind = ScorerKind::kTova});
  }
}

TEST_F(DeviceScorerTest, ProductsPerQueryHeadEqualTheCpus) {
  for (const ScorerKind kind : {ScorerKind::kSnapKv, ScorerKind::kTova}) {
    SCOPED_TRACE(static_cast<int32_t>(kind));
    Pair pair(1, kind == ScorerKind::kTova ? 1 : 8, 70);
    const int64_t size = pair.test.size();
    const std::vector<float> norms = RandomFloats(
        pair.test.rng, size * pair.test.model.layout().group_size());
    pair.CompareRuns(2 * size, [&](Backend& backend, std::span<float> out) {
      ScoreBatch batch = pair.test.Batch({.kind = kind, .window = 8});
      batch.q_head_norms = norms;
      batch.product_eps = 1e-3f;
      batch.scores = out.first(size);
      batch.products = out.subspan(size);
      backend.Score(batch);
    });
  }
}

TEST_F(DeviceScorerTest, KeyScoresEqualTheCpus) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Pair pair(seed, 1, 50 * TestLengthFactor());
    pair.Compare({.kind = ScorerKind::kKnorm});
    for (const KeyDiffMetric metric :
         {KeyDiffMetric::kCosine, KeyDiffMetric::kDot,
          KeyDiffMetric::kEuclidean}) {
      for (const KeyDiffAnchor anchor :
           {KeyDiffAnchor::kNormalized, KeyDiffAnchor::kRaw,
            KeyDiffAnchor::kMedian}) {
        pair.Compare(
            {.kind = ScorerKind::kKeyDiff, .anchor = anchor, .metric = metric});
      }
    }
    pair.Compare(
        {.kind = ScorerKind::kKeyDiff, .anchor = KeyDiffAnchor::kPairwise});
  }
}

// What both sides sum up of random queries, in two calls.
QueryStatistics Observe(Backend& backend, const std::vector<float>& queries,
                        int32_t num_tokens) {
  const ModelLayout& layout = backend.layout();
  const int32_t first = num_tokens / 3;
  QueryStatistics statistics;
  backend.AddQueries(queries.data(), first, &statistics);
  backend.AddQueries(
      queries.data() + int64_t{first} * layout.num_q_heads * layout.head_dim,
      num_tokens - first, &statistics);
  return statistics;
}

TEST_F(DeviceScorerTest, ExpectedAttentionEqualsTheCpus) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const int32_t length = 60 * TestLengthFactor();
    Pair pair(seed, 1, length, false);
    const ModelLayout& layout = pair.test.model.layout();
    ScorerSpec scorer{.kind = ScorerKind::kExpectedAttention};
    scorer.n_future = seed % 2 == 0 ? 512 : 1;
    scorer.n_sink = static_cast<int32_t>(seed % 3) * 4;
    scorer.cov = seed != 4;
    scorer.vnorm = seed != 5;
    // As many as any n_sink leaves.
    const int32_t num_tokens = length - scorer.n_sink;
    std::vector<float> queries =
        RandomFloats(pair.test.rng, int64_t{num_tokens} * layout.num_q_heads *
                                        layout.head_dim);
    for (float& x : queries) x = 0.5f * x + 0.3f;
    std::vector<double> frequencies;
    frequencies.reserve(layout.head_dim / 2);
    for (int32_t i = 0; i < layout.head_dim / 2; ++i) {
      frequencies.push_back(std::pow(1e4, -2.0 * i / layout.head_dim));
    }
    const QueryStatistics statistics = Observe(*pair.cpu, queries, num_tokens);
    const QueryStatistics observed = Observe(*pair.device, queries, num_tokens);
    EXPECT_EQ(observed.count, num_tokens);
    EXPECT_EQ(observed.sums, statistics.sums);
    EXPECT_EQ(observed.products, statistics.products);
    pair.CompareRuns(
        pair.test.size(), [&](Backend& backend, std::span<float> out) {
          ScoreBatch batch = pair.test.Batch(scorer);
          batch.scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
          batch.window = {.length = length};
          batch.statistics = &statistics;
          batch.inverse_frequencies = frequencies;
          batch.scores = out;
          backend.Score(batch);
        });
  }
}

// Nothing was observed: nothing but sinks is left of a short sequence.
TEST_F(DeviceScorerTest, ExpectedAttentionNeedsNoQueriesWhereAllAreSinks) {
  const Pair pair(0, 1, 4);
  const ModelLayout& layout = pair.test.model.layout();
  const std::vector<double> frequencies(layout.head_dim / 2, 0.5);
  const QueryStatistics none;
  std::vector<float> scores(pair.test.size(), kNan);
  ScoreBatch batch =
      pair.test.Batch({.kind = ScorerKind::kExpectedAttention, .n_sink = 4});
  batch.statistics = &none;
  batch.inverse_frequencies = frequencies;
  batch.scores = scores;
  pair.device->Score(batch);
  for (const float score : scores) {
    EXPECT_EQ(score, std::numeric_limits<float>::infinity());
  }
}

TEST_F(DeviceScorerTest, H2oEqualsTheCpus) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair pair(seed, 9, 60 * TestLengthFactor(), false);
    ScorerSpec scorer{.kind = ScorerKind::kH2o, .obs_window = 9};
    scorer.norm = seed % 2 == 0 ? H2oNorm::kNone : H2oNorm::kCount;
    pair.Compare(scorer);
    // From sums that both sides add up, in two calls.
    const int64_t size = pair.test.size();
    std::vector<float> sums(size);
    const auto add = [&](Backend& backend, std::span<float> out) {
      std::ranges::fill(out, 0.25f);
      for (int32_t call = 0; call < 2; ++call) {
        backend.AddAttention({.layer = 0,
                              .scale = pair.test.scale,
                              .entries = pair.test.Entries(),
                              .window = pair.test.Window(),
                              .sums = out});
      }
    };
    pair.CompareRuns(size, add);
    add(*pair.cpu, sums);
    pair.CompareRuns(size, [&](Backend& backend, std::span<float> out) {
      ScoreBatch batch =
          pair.test.Batch({.kind = ScorerKind::kH2o, .norm = scorer.norm});
      batch.attention_sums = sums;
      batch.scores = out;
      backend.Score(batch);
    });
  }
}

TEST_F(DeviceScorerTest, ValueNormsEqualTheCpus) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Pair(seed, 1, 40)
        .CompareValueNorms(seed < 4 ? ValueNorm::kL1 : ValueNorm::kL2, 72,
                           seed % 2 == 1);
  }
}

// More entries than any kernel's CTA takes.
TEST_F(DeviceScorerTest, ListsOfSeveralCtasEqualTheCpus) {
  Pair pair(0, 8, 1500);
  ASSERT_GT(pair.test.head_size(0), 1024);
  pair.Compare({.kind = ScorerKind::kSnapKv, .window = 8});
  pair.Compare({.kind = ScorerKind::kKeyDiff});
  pair.Compare(
      {.kind = ScorerKind::kKeyDiff, .anchor = KeyDiffAnchor::kMedian});
  pair.Compare({.kind = ScorerKind::kKnorm});
  pair.Compare({.kind = ScorerKind::kH2o, .obs_window = 8});
  pair.CompareValueNorms(ValueNorm::kL1, 8, false);
  Pair(0, 1, 700).Compare({.kind = ScorerKind::kTova});
}

TEST_F(DeviceScorerTest, AbortsOnScorersThatReadNoKeys) {
  const Pair pair(0, 1, 20);
  EXPECT_DEATH(pair.test.Run(*pair.device, {.kind = ScorerKind::kStreaming}),
               "HasScorer");
}

}  // namespace
}  // namespace blockmgr
