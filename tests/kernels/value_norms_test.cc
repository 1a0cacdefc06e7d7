// Norms of projected values against the projection in full, in float64.

#include "kernels/cpu/value_norms.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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

struct NormCase {
  NormCase(DType dtype, int32_t length, int32_t width, uint64_t seed)
      : rng(seed),
        layout(LayoutFor(rng, dtype, length)),
        test(layout, {.length = length, .whole_window = false}, seed + 1),
        model_dim(width),
        weights(RandomFloats(
            rng, int64_t{layout.num_q_heads} * layout.head_dim * width)) {}

  std::vector<float> Run(Backend& backend, ValueNorm norm,
                         bool per_query_head) const {
    std::vector<float> norms(
        test.size() * (per_query_head ? layout.group_size() : 1), -1.0f);
    backend.ValueNorms({.norm = norm,
                        .entries = test.Entries(),
                        .output_projection = weights.data(),
                        .model_dim = model_dim,
                        .per_query_head = per_query_head,
                        .norms = norms});
    return norms;
  }

  double Norm(ValueNorm norm, int32_t q_head, int64_t entry) const {
    double sum = 0.0;
    for (int64_t m = 0; m < model_dim; ++m) {
      double y = 0.0;
      for (int64_t i = 0; i < layout.head_dim; ++i) {
        y += double{test.value(entry)[i]} *
             weights[(int64_t{q_head} * layout.head_dim + i) * model_dim + m];
      }
      sum += norm == ValueNorm::kL1 ? std::abs(y) : y * y;
    }
    return norm == ValueNorm::kL1 ? sum : std::sqrt(sum);
  }

  Rng rng;
  ModelLayout layout;
  ScoreCase test;
  int32_t model_dim;
  std::vector<float> weights;  // [num_q_heads, head_dim, model_dim]
};

class ValueNormsTest : public testing::TestWithParam<DType> {};

TEST_P(ValueNormsTest, MatchNaiveNorms) {
  for (uint64_t seed = 0; seed < SlowCases(10); ++seed) {
    Rng rng(seed);
    const int32_t model_dim = RandomInt(rng, 1, 150);
    SCOPED_TRACE(testing::Message() << seed << ", width " << model_dim);
    const int32_t longest = kBrief ? 100 : 300;
    const NormCase c(GetParam(), seed == 0 ? longest : 40, model_dim,
                     seed + 20);
    const auto backend = c.test.model.MakeBackend();
    const int32_t group_size = c.layout.group_size();
    for (const ValueNorm norm : {ValueNorm::kL1, ValueNorm::kL2}) {
      const std::vector<float> means = c.Run(*backend, norm, false);
      const std::vector<float> norms = c.Run(*backend, norm, true);
      for (int32_t head = 0; head < c.layout.num_heads; ++head) {
        const int64_t begin = c.test.offsets[head];
        const int64_t size = c.test.head_size(head);
        for (int64_t j = 0; j < size; ++j) {
          double mean = 0.0;
          for (int32_t g = 0; g < group_size; ++g) {
            const double expected =
                c.Norm(norm, head * group_size + g, begin + j);
            // A narrow W has sums near zero, which L2 takes a root of.
            ASSERT_NEAR(norms[group_size * begin + g * size + j], expected,
                        1e-5 * expected + 1e-3);
            mean += expected / group_size;
          }
          ASSERT_NEAR(means[begin + j], mean, 1e-5 * mean + 1e-3);
        }
      }
    }
  }
}

TEST_P(ValueNormsTest, DependOnTheValueAlone) {
  NormCase c(GetParam(), 300, 70, 5);
  // Every entry of a head has the first one's value.
  for (int32_t head = 0; head < c.layout.num_heads; ++head) {
    for (int64_t e = c.test.offsets[head]; e < c.test.offsets[head + 1]; ++e) {
      std::ranges::copy(c.test.value(c.test.offsets[head]),
                        c.test.model.value(c.test.slots[e]).begin());
    }
  }
  const auto backend = c.test.model.MakeBackend();
  for (const ValueNorm norm : {ValueNorm::kL1, ValueNorm::kL2}) {
    const std::vector<float> norms = c.Run(*backend, norm, false);
    for (int32_t head = 0; head < c.layout.num_heads; ++head) {
      for (int64_t e = c.test.offsets[head]; e < c.test.offsets[head + 1];
           ++e) {
        ASSERT_EQ(norms[e], norms[c.test.offsets[head]]);
      }
    }
  }
}

TEST_P(ValueNormsTest, ZeroHasNoSizeAndNaNPassesThrough) {
  NormCase c(GetParam(), 30, 20, 6);
  std::ranges::fill(c.test.model.value(c.test.slots[0]), 0.0f);
  c.test.model.value(c.test.slots[1])[0] =
      std::numeric_limits<float>::quiet_NaN();
  const auto backend = c.test.model.MakeBackend();
  for (const ValueNorm norm : {ValueNorm::kL1, ValueNorm::kL2}) {
    const std::vector<float> norms = c.Run(*backend, norm, false);
    EXPECT_EQ(norms[0], 0.0f);
    EXPECT_TRUE(std::isnan(norms[1]));
    for (std::size_t i = 2; i < norms.size(); ++i) {
      EXPECT_FALSE(std::isnan(norms[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ValueNormsTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

}  // namespace
}  // namespace blockmgr
