#include "engine/reference/linear.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

class LinearTest : public ::testing::TestWithParam<int32_t> {
 protected:
  static std::vector<float> Random(size_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  }
};

TEST_P(LinearTest, MatchesFloat64) {
  const int32_t in = 37;
  const int32_t out = GetParam();
  const std::vector<float> input = Random(3 * 37, 1);
  const std::vector<float> weights = Random(static_cast<size_t>(in * out), 2);
  std::vector<float> output(static_cast<size_t>(3 * out));
  Linear(input, weights, in, out, output);
  for (int32_t row = 0; row < 3; ++row) {
    for (int32_t j = 0; j < out; ++j) {
      double sum = 0;
      for (int32_t i = 0; i < in; ++i) {
        sum += double{input[static_cast<size_t>(row * in + i)]} *
               double{weights[static_cast<size_t>(i * out + j)]};
      }
      EXPECT_NEAR(output[static_cast<size_t>(row * out + j)], sum, 1e-5);
    }
  }
}

TEST_P(LinearTest, RowIsTheSameAloneAndAmongOthers) {
  const int32_t in = 64;
  const int32_t out = GetParam();
  const std::vector<float> input = Random(9 * 64, 3);
  const std::vector<float> weights = Random(static_cast<size_t>(in * out), 4);
  std::vector<float> together(static_cast<size_t>(9 * out));
  Linear(input, weights, in, out, together);
  for (size_t row = 0; row < 9; ++row) {
    std::vector<float> alone(static_cast<size_t>(out));
    Linear(std::span(input).subspan(row * 64, 64), weights, in, out, alone);
    const auto first = together.begin() + static_cast<ptrdiff_t>(row) * out;
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), first));
  }
}

// Narrower and wider than four vectors of any instruction set, and both at
// once.
INSTANTIATE_TEST_SUITE_P(Widths, LinearTest,
                         ::testing::Values(16, 48, 64, 80, 256));

}  // namespace
}  // namespace blockmgr
