// Edits of logits, and draws of tokens, against their definition in float64.
#include "kernels/cuda/layers/token_draws.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

constexpr float kNoLogit = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TokenDrawsTest : public DeviceTest {
 protected:
  static std::vector<int32_t> Draw(const std::vector<RowDraw>& draws,
                                   const SharedVector<float>& logits,
                                   int32_t vocabulary,
                                   const simt::Schedule& schedule = {}) {
    const auto shared = Shared(draws);
    SharedVector<int32_t> tokens(draws.size(), -1);
    EXPECT_EQ(RunKernel(schedule, &DeviceRuntime::DrawTokens,
                        {.num_draws = static_cast<int32_t>(draws.size()),
                         .vocabulary = vocabulary,
                         .draws = shared.data(),
                         .logits = logits.data(),
                         .tokens = tokens.data()})
                  .error,
              "");
    return {tokens.begin(), tokens.end()};
  }
};

TEST_F(TokenDrawsTest, EditsLogitsInTheOrderOfTheFields) {
  SharedVector<float> logits = Shared(
      std::vector<float>{1.0f, -1.0f, 2.0f, 3.0f, 4.0f, -5.0f, 6.0f, 7.0f});
  const auto edits = Shared(std::vector<LogitEdit>{
      {.row = 0, .token = 1, .bias = 3.0f, .repetition = 2.0f, .penalty = 0.5f},
      {.row = 1, .token = 1, .repetition = 2.0f},
      {.row = 1, .token = 3, .bias = -kInfinity, .repetition = 2.0f}});
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::EditLogits,
                      {.num_edits = std::ssize(edits),
                       .vocabulary = 4,
                       .edits = edits.data(),
                       .logits = logits.data()})
                .error,
            "");
  EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()),
            (std::vector<float>{1.0f, 0.5f, 2.0f, 3.0f, 4.0f, -10.0f, 6.0f,
                                -kInfinity}));
}

TEST_F(TokenDrawsTest, WithoutATemperatureTheFirstOfTheMostLikelyIsDrawn) {
  const int32_t vocabulary = 300;
  SharedVector<float> logits(static_cast<size_t>(4 * vocabulary), -2.0f);
  logits[17] = kNoLogit;
  logits[41] = 5.0f;
  logits[250] = 5.0f;
  // Of the second row nothing is finite, of the third nothing a number.
  std::fill_n(logits.begin() + vocabulary, vocabulary, -kInfinity);
  std::fill_n(logits.begin() + 2 * vocabulary, vocabulary, kNoLogit);
  logits[static_cast<size_t>(3 * vocabulary) + 299] = kInfinity;
  EXPECT_EQ(Draw({{.row = 3},
                  {.row = 0},
                  {.row = 1},
                  {.row = 2},
                  {.row = 1, .inverse_temperature = 1.0f, .uniform = 0.5}},
                 logits, vocabulary),
            (std::vector<int32_t>{299, 41, 0, 0, 0}));
}

// Returns the token that holds the place, and whether rounding could move it to
// another.
struct NaiveDraw {
  int32_t token = 0;
  bool is_clear = true;
};

NaiveDraw DrawNaively(const RowDraw& draw, const float* logits,
                      int32_t vocabulary) {
  const double max = double{*std::max_element(logits, logits + vocabulary)};
  std::vector<double> weights;
  double total = 0.0;
  for (int32_t i = 0; i < vocabulary; ++i) {
    const double x =
        (double{logits[i]} - max) * double{draw.inverse_temperature};
    weights.push_back(x < double{draw.min_exponent} ? 0.0 : std::exp(x));
    total += weights.back();
  }
  const double place = draw.uniform * total;
  NaiveDraw result{.token = -1};
  double sum = 0.0;
  for (int32_t i = 0; i < vocabulary; ++i) {
    sum += weights[static_cast<size_t>(i)];
    result.is_clear &= std::abs(sum - place) > 1e-5 * total;
    if (result.token < 0 && place < sum) result.token = i;
  }
  return result;
}

TEST_F(TokenDrawsTest, DrawsWhatTheWeightsSay) {
  for (const int32_t vocabulary : {5, 96, 5003}) {
    std::mt19937_64 random(9);
    std::normal_distribution<float> logit(0.0f, 3.0f);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    SharedVector<float> logits;
    for (int32_t i = 0; i < 3 * vocabulary; ++i) {
      logits.push_back(logit(random));
    }
    std::vector<RowDraw> draws;
    for (int32_t i = 0; i < 12; ++i) {
      draws.push_back({.row = i % 3,
                       .inverse_temperature = i % 2 == 0 ? 1.0f : 0.4f,
                       .min_exponent = i % 4 < 2 ? -87.0f : -2.0f,
                       .uniform = i == 0 ? 0.0 : uniform(random)});
    }
    std::vector<int32_t> tokens;
    ExpectSchedulesDoNotMatter(
        [&](const simt::Schedule& schedule) {
          tokens = Draw(draws, logits, vocabulary, schedule);
          return "";
        },
        [&] { return tokens; });
    int32_t num_clear = 0;
    for (size_t i = 0; i < draws.size(); ++i) {
      const NaiveDraw expected = DrawNaively(
          draws[i], logits.data() + draws[i].row * vocabulary, vocabulary);
      if (!expected.is_clear) continue;
      ++num_clear;
      EXPECT_EQ(tokens[i], expected.token) << vocabulary << " " << i;
    }
    EXPECT_GE(num_clear, 6);
  }
}

}  // namespace
}  // namespace blockmgr
