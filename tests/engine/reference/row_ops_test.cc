#include "engine/reference/row_ops.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/every_target.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAreArray;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

std::vector<float> RandomRow(size_t size, double scale, Rng& rng) {
  std::vector<float> values(size);
  for (float& value : values) {
    value = static_cast<float>((RandomFraction(rng) * 2 - 1) * scale);
  }
  return values;
}

class RowOpsTest : public EveryTargetTest {};
BM_FOR_EVERY_TARGET(RowOpsTest);

TEST_P(RowOpsTest, NormalizesLikeFloat64) {
  Rng rng(1);
  for (const size_t width : {1, 15, 64, 576}) {
    const std::vector<float> rows = RandomRow(3 * width, 5, rng);
    const std::vector<float> gains = RandomRow(width, 2, rng);
    std::vector<float> normalized(rows.size());
    NormalizeRows(rows, gains, 1e-5f, normalized);
    for (size_t i = 0; i < rows.size(); ++i) {
      double sum = 0;
      for (size_t j = 0; j < width; ++j) {
        const double x = rows[i / width * width + j];
        sum += x * x;
      }
      const double expected =
          rows[i] * gains[i % width] /
          std::sqrt(sum / static_cast<double>(width) + double{1e-5f});
      EXPECT_NEAR(normalized[i], expected,
                  8 * kEpsilon * std::abs(expected) + 1e-30);
    }
  }
}

TEST_P(RowOpsTest, NormalizedRowIsTheSameAloneAndInPlace) {
  Rng rng(2);
  const size_t width = 200;
  std::vector<float> rows = RandomRow(4 * width, 1, rng);
  const std::vector<float> gains = RandomRow(width, 1, rng);
  std::vector<float> together(rows.size());
  NormalizeRows(rows, gains, 1e-6f, together);
  for (size_t i = 0; i < rows.size(); i += width) {
    const std::span<float> row = std::span(rows).subspan(i, width);
    NormalizeRows(row, gains, 1e-6f, row);
  }
  EXPECT_THAT(rows, ElementsAreArray(together));
}

TEST_P(RowOpsTest, GatesAreThoseOfFloat64) {
  Rng rng(3);
  for (const double scale : {1e-3, 1.0, 10.0, 80.0}) {
    const std::vector<float> x = RandomRow(333, scale, rng);
    const std::vector<float> up = RandomRow(333, 3, rng);
    std::vector<float> silu = x;
    std::vector<float> gelu = x;
    GateWithSilu(up, silu);
    GateWithGelu(up, gelu);
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = x[i];
      const double expected_silu = value / (1 + std::exp(-value)) * up[i];
      EXPECT_NEAR(silu[i], expected_silu,
                  4 * kEpsilon * std::abs(expected_silu) + 1e-36);
      const double u = std::sqrt(2 / std::numbers::pi) *
                       (value + 0.044715 * value * value * value);
      // A rounding of u is a relative error of exp(-2 u).
      const double expected_gelu = value * (1 + std::tanh(u)) / 2 * up[i];
      EXPECT_NEAR(
          gelu[i], expected_gelu,
          kEpsilon * (4 * std::abs(expected_gelu) + std::abs(value * up[i])));
    }
  }
}

TEST_P(RowOpsTest, GatesOfLargeNumbersAreZeroOrTheNumber) {
  for (const float large : {88.0f, 104.0f, 1e3f, 1e30f}) {
    std::vector<float> silu = {large, -large};
    GateWithSilu(std::vector<float>{1, 1}, silu);
    EXPECT_EQ(silu[0], large);
    EXPECT_NEAR(silu[1], 0, 1e-35);
    if (large > 1e12f) continue;  // Its cube is infinite.
    std::vector<float> gelu = {large, -large};
    GateWithGelu(std::vector<float>{1, 1}, gelu);
    EXPECT_EQ(gelu[0], large);
    EXPECT_EQ(gelu[1], 0);
  }
}

// The place in a row decides on the vector, but not on the bits.
TEST_P(RowOpsTest, GateOfAnElementIsTheSameAtEveryPlace) {
  Rng rng(4);
  const std::vector<float> x = RandomRow(100, 5, rng);
  std::vector<float> together = x;
  GateWithSilu(std::vector<float>(100, 0.3f), together);
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<float> alone = {x[i]};
    GateWithSilu(std::vector<float>{0.3f}, alone);
    EXPECT_EQ(alone[0], together[i]);
  }
}

// Each operation is rounded by itself: doubles hold a product of two floats.
TEST_P(RowOpsTest, RotatesPairs) {
  Rng rng(5);
  for (const size_t half : {1, 4, 8, 24, 32}) {
    const size_t num_rows = 3;
    const size_t num_heads = 2;
    std::vector<float> cosines;
    std::vector<float> sines;
    for (size_t i = 0; i < num_rows * half; ++i) {
      const double angle = RandomFraction(rng) * 100;
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
    const std::vector<float> before =
        RandomRow(num_rows * num_heads * 2 * half, 1, rng);
    std::vector<float> rows = before;
    RotateRows(cosines, sines, half, rows);
    const auto product = [](float a, float b) {
      return double{static_cast<float>(double{a} * b)};
    };
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t at = i / (num_heads * 2 * half) * half + i % half;
      const bool is_low = i % (2 * half) < half;
      const double expected = is_low ? product(before[i], cosines[at]) -
                                           product(before[i + half], sines[at])
                                     : product(before[i], cosines[at]) +
                                           product(before[i - half], sines[at]);
      EXPECT_EQ(rows[i], static_cast<float>(expected));
    }
  }
}

TEST_P(RowOpsTest, AddsElements) {
  Rng rng(6);
  const std::vector<float> a = RandomRow(77, 1, rng);
  const std::vector<float> b = RandomRow(77, 1, rng);
  std::vector<float> sums = a;
  AddRows(b, sums);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(sums[i], a[i] + b[i]);
}

}  // namespace
}  // namespace blockmgr
