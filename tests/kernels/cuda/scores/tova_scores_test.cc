// tova against float64 and the CPU backend.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/tova_runner.h"
#include "tests/kernels/cuda/scores/window_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// The weights alone, as the kernels of the window give them.
template <typename T>
SharedVector<float> RunWindow(EntryCase<T>* test) {
  WindowRunner<T> window(test);
  EXPECT_EQ(window.RunStats({}), "");
  EXPECT_EQ(window.RunColumns({}), "");
  return window.attention();
}

// Of one sequence: sums by position of what weight(list, q_head, entry) says,
// over heads and query heads in order. Number: float or double.
template <typename Number, typename T, typename Weight>
std::vector<Number> SumByPosition(const EntryCase<T>& test, int32_t sequence,
                                  const Weight& weight) {
  const EntryShape& shape = test.shape();
  std::vector<Number> sums(test.lengths()[sequence]);
  for (int32_t h = 0; h < shape.num_heads; ++h) {
    const int32_t list = sequence * shape.num_heads + h;
    for (int32_t g = 0; g < shape.group_size; ++g) {
      for (int32_t e = 0; e < test.CountPast(list); ++e) {
        sums[test.position(test.offset(list) + e)] += weight(list, g, e);
      }
    }
  }
  const auto num_q_heads =
      static_cast<Number>(shape.num_heads * shape.group_size);
  for (Number& sum : sums) sum /= num_q_heads;
  sums.back() = std::numeric_limits<Number>::infinity();
  return sums;
}

class TovaScoresTest : public DeviceTest {};

TEST_F(TovaScoresTest, MatchFloat64) {
  for (const bool whole_window : {true, false}) {
    SCOPED_TRACE(whole_window);
    // Positions of several tiles, and heads without entries at some or any.
    EntryCase<simt::BFloat16> test(
        {.num_heads = 3,
         .group_size = 2,
         .sizes = {2 * kTovaThreads + 40, 0, 90, 5, 60, 1},
         .whole_window = whole_window},
        1);
    TovaRunner<simt::BFloat16> runner(&test);
    ASSERT_EQ(runner.Run(RunWindow(&test), {}), "");
    for (int32_t s = 0; s < test.num_sequences(); ++s) {
      std::vector<std::vector<double>> weights;
      weights.reserve(6);
      for (int32_t i = 0; i < 6; ++i) {
        weights.push_back(test.Weights(s * 3 + i / 2, 0, i % 2, nullptr));
      }
      const std::vector<double> expected = SumByPosition<double>(
          test, s, [&](int32_t list, int32_t g, int32_t e) {
            return weights[(list - s * 3) * 2 + g][e];
          });
      for (int64_t i = test.offset(s * 3);
           i < test.offset(s * 3 + 2) + test.size(s * 3 + 2); ++i) {
        const double want = expected[test.position(i)];
        if (std::isinf(want)) {
          ASSERT_EQ(runner.scores()[i], want);
        } else {
          ASSERT_NEAR(runner.scores()[i], want, 2e-5 * want) << i;
        }
      }
    }
  }
}

// The same weights give the same bits as the sums of the CPU, NaN and all.
TEST_F(TovaScoresTest, EqualTheSumsOfTheCpuBitForBit) {
  EntryCase<simt::Half> test({.num_heads = 4,
                              .group_size = 3,
                              .sizes = {300, 290, 0, 40},
                              .whole_window = false},
                             2);
  auto attention =
      Shared(RandomFloats(test.cache().rng(), test.num_entries() * 3));
  attention[17] = std::nanf("");
  attention[40] = -std::numeric_limits<float>::infinity();
  TovaRunner<simt::Half> runner(&test);
  ASSERT_EQ(runner.Run(attention, {}), "");
  const std::vector<float> expected =
      SumByPosition<float>(test, 0, [&](int32_t list, int32_t g, int32_t e) {
        return attention[test.offset(list) * 3 + int64_t{g} * test.size(list) +
                         e];
      });
  for (int64_t i = 0; i < test.num_entries(); ++i) {
    const float want = expected[test.position(i)];
    const float got = runner.scores()[i];
    ASSERT_TRUE(simt::FloatBits(got) == simt::FloatBits(want) ||
                (std::isnan(got) && std::isnan(want)))
        << i << ": " << got << " " << want;
  }
}

TEST_F(TovaScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test(
      {.num_heads = 4, .group_size = 2, .sizes = {290, 40, 100, 270}}, 4);
  TovaRunner<simt::BFloat16> runner(&test);
  const auto attention =
      Shared(RandomFloats(test.cache().rng(), test.num_entries() * 2));
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run(attention, {.schedule = schedule});
      },
      [&] { return runner.scores(); });
}

}  // namespace
}  // namespace blockmgr
