// SnapKV scores against a float64 reference written from the method's text.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using Matrix = std::vector<std::vector<double>>;

// A sequence after an eviction or two: per head any subset of the positions, on
// any slots; the window is whole.
struct SnapKvCase {
  // The last `window` of `size` tokens are the queries.
  SnapKvCase(const ModelLayout& layout, int32_t window, int32_t size,
             uint64_t seed)
      : rng(seed), model(layout), num_queries(window), length(size) {
    std::vector<SlotIndex> free(layout.num_pages() * layout.page_size);
    for (std::size_t i = 0; i < free.size(); ++i) {
      free[i] = static_cast<SlotIndex>(i);
    }
    Shuffle(&free, rng);
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      for (int32_t position = 0; position < length; ++position) {
        const bool in_window = position >= length - num_queries;
        if (!in_window && RandomInt(rng, 0, 3) == 0) continue;
        positions.push_back(position);
        slots.push_back(free.back());
        free.pop_back();
        model.FillRandom(slots.back(), rng);
      }
      offsets.push_back(static_cast<int64_t>(slots.size()));
    }
    queries = RandomFloats(
        rng, int64_t{num_queries} * layout.num_q_heads * layout.head_dim);
  }

  std::vector<float> Run(Backend& backend, const ScorerSpec& scorer) const {
    std::vector<float> scores(slots.size(), std::nanf(""));
    backend.SnapKvScores({.layer = 0,
                          .scorer = scorer,
                          .scale = scale,
                          .queries = queries.data(),
                          .num_queries = num_queries,
                          .length = length,
                          .offsets = offsets,
                          .slots = slots,
                          .positions = positions,
                          .scores = scores});
    return scores;
  }

  Rng rng;
  PoolModel model;
  int32_t num_queries;
  int32_t length;
  float scale = 0.3f;
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  std::vector<float> queries;
};

// attention[g][j]: mean over the window of the softmax over all visible
// entries.
Matrix WindowMean(const SnapKvCase& test, int32_t head, int64_t num_past) {
  const ModelLayout& layout = test.model.layout();
  const int64_t begin = test.offsets[head];
  const int64_t end = test.offsets[head + 1];
  Matrix mean(layout.group_size(), std::vector<double>(num_past));
  for (int32_t g = 0; g < layout.group_size(); ++g) {
    for (int32_t i = 0; i < test.num_queries; ++i) {
      const int32_t q_head = head * layout.group_size() + g;
      const float* query =
          &test.queries[(int64_t{i} * layout.num_q_heads + q_head) *
                        layout.head_dim];
      std::vector<double> weights;
      for (int64_t e = begin; e < end; ++e) {
        double dot = 0.0;
        for (int32_t k = 0; k < layout.head_dim; ++k) {
          dot += double{query[k]} * double{test.model.key(test.slots[e])[k]};
        }
        const bool visible =
            test.positions[e] <= test.length - test.num_queries + i;
        weights.push_back(visible ? std::exp(dot * test.scale) : 0.0);
      }
      double sum = 0.0;
      for (const double weight : weights) sum += weight;
      for (int64_t j = 0; j < num_past; ++j) {
        mean[g][j] += weights[j] / sum / test.num_queries;
      }
    }
  }
  return mean;
}

// 1-d pooling with stride 1: max over what is there, or the sum over what is
// there divided by the kernel.
std::vector<double> Pool(const ScorerSpec& scorer,
                         const std::vector<double>& in) {
  const int64_t n = std::ssize(in);
  std::vector<double> out(n);
  for (int64_t j = 0; j < n; ++j) {
    double max = -1.0;
    double sum = 0.0;
    for (int64_t k = j - scorer.kernel / 2; k <= j + scorer.kernel / 2; ++k) {
      if (k < 0 || k >= n) continue;
      max = std::max(max, in[k]);
      sum += in[k];
    }
    out[j] = scorer.pool == PoolKind::kMax ? max : sum / scorer.kernel;
  }
  return out;
}

std::vector<double> ReduceGroup(const ScorerSpec& scorer, const Matrix& in) {
  std::vector<double> out(in[0].size());
  for (std::size_t j = 0; j < out.size(); ++j) {
    double max = in[0][j];
    double sum = 0.0;
    for (const std::vector<double>& row : in) {
      max = std::max(max, row[j]);
      sum += row[j];
    }
    out[j] = scorer.group == GroupReduce::kMax
                 ? max
                 : sum / static_cast<double>(in.size());
  }
  return out;
}

std::vector<double> NaiveScores(const SnapKvCase& test,
                                const ScorerSpec& scorer, int32_t head) {
  const int64_t begin = test.offsets[head];
  const int64_t end = test.offsets[head + 1];
  const int64_t num_past = end - begin - test.num_queries;
  std::vector<double> scores;
  if (num_past > 0) {
    Matrix attention = WindowMean(test, head, num_past);
    if (scorer.order == PoolOrder::kKvPress) {
      for (std::vector<double>& row : attention) row = Pool(scorer, row);
      scores = ReduceGroup(scorer, attention);
    } else {
      scores = Pool(scorer, ReduceGroup(scorer, attention));
    }
  }
  scores.resize(end - begin, std::numeric_limits<double>::infinity());
  return scores;
}

class SnapKvTest : public testing::TestWithParam<DType> {};

TEST_P(SnapKvTest, MatchesNaiveScores) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ModelLayout layout = RandomLayout(rng, GetParam(), 0);
    layout.num_blocks = 200 / layout.page_size + 2;
    const int32_t num_queries = RandomInt(rng, 1, 40);
    const SnapKvCase test(layout, num_queries,
                          num_queries + RandomInt(rng, 1, 150), seed + 1000);
    const auto backend = test.model.MakeBackend();
    for (const PoolKind pool : {PoolKind::kMax, PoolKind::kAvg}) {
      const ScorerSpec scorer{
          .window = num_queries,
          .pool = pool,
          .kernel = 2 * RandomInt(rng, 0, 4) + 1,
          .order = seed % 2 == 0 ? PoolOrder::kAdaKv : PoolOrder::kKvPress,
          .group = seed % 4 < 2 ? GroupReduce::kMean : GroupReduce::kMax};
      const std::vector<float> scores = test.Run(*backend, scorer);
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        const std::vector<double> expected = NaiveScores(test, scorer, head);
        const double largest =
            expected.size() == static_cast<std::size_t>(num_queries)
                ? 0.0
                : *std::max_element(expected.begin(),
                                    expected.end() - num_queries);
        for (std::size_t j = 0; j < expected.size(); ++j) {
          const float score = scores[test.offsets[head] + j];
          if (std::isinf(expected[j])) {
            ASSERT_EQ(score, std::numeric_limits<float>::infinity());
          } else {
            ASSERT_NEAR(score, expected[j], 5e-6 * largest)
                << "head " << head << " entry " << j;
          }
        }
      }
    }
  }
}

TEST_P(SnapKvTest, SlotsDoNotMatterOnlyRowsDo) {
  ModelLayout layout{.num_layers = 2,
                     .num_heads = 2,
                     .num_q_heads = 6,
                     .head_dim = 40,
                     .page_size = 4,
                     .dtype = GetParam(),
                     .num_blocks = 90};
  const SnapKvCase test(layout, 8, 100, 5);
  SnapKvCase moved = test;
  PoolModel other(layout);
  std::vector<SlotIndex> free(layout.num_pages() * layout.page_size);
  for (std::size_t i = 0; i < free.size(); ++i) {
    free[i] = static_cast<SlotIndex>(i);
  }
  Shuffle(&free, moved.rng);
  for (SlotIndex& slot : moved.slots) {
    std::ranges::copy(test.model.key(slot), other.key(free.back()).begin());
    slot = free.back();
    free.pop_back();
  }
  const ScorerSpec scorer;
  const std::vector<float> expected =
      test.Run(*test.model.MakeBackend(), scorer);
  EXPECT_EQ(moved.Run(*other.MakeBackend(), scorer), expected);
}

TEST_P(SnapKvTest, WindowCoveringTheSequenceProtectsEverything) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 2,
                           .num_q_heads = 2,
                           .head_dim = 8,
                           .page_size = 4,
                           .dtype = GetParam(),
                           .num_blocks = 8};
  const SnapKvCase test(layout, 9, 9, 6);
  const std::vector<float> scores = test.Run(*test.model.MakeBackend(), {});
  EXPECT_EQ(scores,
            std::vector<float>(18, std::numeric_limits<float>::infinity()));
}

INSTANTIATE_TEST_SUITE_P(DTypes, SnapKvTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16),
                         DTypeName);

}  // namespace
}  // namespace blockmgr
