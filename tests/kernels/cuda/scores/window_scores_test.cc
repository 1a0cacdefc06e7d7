// Attention of a window's queries, against float64.

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/window_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// Products are exact in fp32 but for the order of 64 .. 256 additions, and
// weights see that through exp: a few 1e-6 of a logit, no 16-bit rounding.
constexpr double kWindowTolerance = 2e-5;

template <typename T>
void ExpectAttentionMatches(const EntryCase<T>& test,
                            std::span<const float> attention,
                            double tolerance = kWindowTolerance) {
  const int32_t group_size = test.shape().group_size;
  double error = 0.0;
  double norm = 0.0;
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    const int32_t num_past = test.CountPast(list);
    for (int32_t g = 0; g < group_size; ++g) {
      std::vector<double> mean(test.size(list));
      for (int32_t q = 0; q < test.shape().window; ++q) {
        const std::vector<double> weights = test.Weights(list, q, g, nullptr);
        for (int32_t e = 0; e < num_past; ++e) {
          mean[e] += weights[e] / test.shape().window;
        }
      }
      for (int32_t e = 0; e < test.size(list); ++e) {
        const float got = attention[test.offset(list) * group_size +
                                    int64_t{g} * test.size(list) + e];
        // Entries inside the window are not written.
        ASSERT_EQ(std::isnan(got), e >= num_past) << list << " " << e;
        if (e >= num_past) continue;
        error += std::pow(got - mean[e], 2);
        norm += std::pow(mean[e], 2);
      }
    }
  }
  EXPECT_TRUE(std::sqrt(error) <= tolerance * std::sqrt(norm))
      << std::sqrt(error / norm);
}

// `relative` is for logits that are far from 0.
template <typename T>
void ExpectLseMatches(const EntryCase<T>& test, std::span<const float> lse,
                      double relative = 0.0) {
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    for (int32_t q = 0; q < test.shape().window; ++q) {
      for (int32_t g = 0; g < test.shape().group_size; ++g) {
        double expected = 0.0;
        test.Weights(list, q, g, &expected);
        const float got = lse[test.QueryRow(list, q, g)];
        if (std::isinf(expected)) {
          ASSERT_EQ(got, expected);
        } else {
          ASSERT_NEAR(got, expected, 2e-5 + relative * std::abs(expected));
        }
      }
    }
  }
}

class WindowScoresTest : public DeviceTest {};

template <typename T>
void ExpectWindowMatches(const EntryShape& shape) {
  SCOPED_TRACE(testing::Message() << shape.head_dim << " " << shape.group_size
                                  << " " << shape.window);
  EntryCase<T> test(shape, 3);
  WindowRunner<T> runner(&test);
  ASSERT_EQ(runner.RunStats({}), "");
  ExpectLseMatches(test, runner.lse());
  ASSERT_EQ(runner.RunColumns({}), "");
  ExpectAttentionMatches(test, runner.attention());
  EXPECT_EQ(runner.bank_conflicts(), 0);
}

TEST_F(WindowScoresTest, MatchFloat64) {
  for (const int32_t window : {1, 16, 23}) {
    ExpectWindowMatches<simt::BFloat16>(
        {.group_size = 3, .sizes = {70, 5, 0, 190}, .window = window});
  }
}

template <typename T>
void CheckWindowShape(int32_t head_dim, int32_t group_size, int32_t window) {
  ExpectWindowMatches<T>({.num_heads = 1,
                          .group_size = group_size,
                          .head_dim = head_dim,
                          .page_size = 32,
                          .order = KvTensorOrder::kNhdApart,
                          .sizes = {90},
                          .window = window});
}

TEST_F(WindowScoresTest, MatchFloat64AtOtherSizes) {
  for (const int32_t head_dim : {128, 256}) {
    CheckWindowShape<simt::Half>(head_dim, 8, 32);
    CheckWindowShape<simt::BFloat16>(head_dim, 4, 20);
    CheckWindowShape<simt::BFloat16>(head_dim, 5, 9);
  }
  for (int32_t group_size = 9; group_size <= 16; ++group_size) {
    CheckWindowShape<simt::BFloat16>(64, group_size, 3);
  }
}

TEST_F(WindowScoresTest, ReadPoolsInEveryOrder) {
  ForEveryPool(
      EntryShape{.group_size = 3, .sizes = {70, 5, 0, 90}, .window = 7},
      ExpectWindowMatches<simt::BFloat16>);
}

// More entries than a split has, so that statistics are merged; lists of other
// lengths beside such a one; and a window that takes several passes over the
// queries.
TEST_F(WindowScoresTest, MatchFloat64AcrossSplitsAndPasses) {
  ExpectWindowMatches<simt::BFloat16>({.num_heads = 1,
                                       .group_size = 1,
                                       .sizes = {kSplitEntries + 70},
                                       .window = 8});
  ExpectWindowMatches<simt::BFloat16>({.num_heads = 1,
                                       .group_size = 1,
                                       .sizes = {kSplitEntries + 40},
                                       .window = 20});
  ExpectWindowMatches<simt::Half>({.group_size = 1,
                                   .sizes = {2 * kSplitEntries + 90, 0, 5, 70},
                                   .window = 4});
  ExpectWindowMatches<simt::BFloat16>(
      {.num_heads = 1, .group_size = 3, .sizes = {200}, .window = 70});
}

// Multiplies the key of an entry.
template <typename T>
void ScaleKey(EntryCase<T>& test, int64_t entry, float factor) {
  for (int32_t i = 0; i < test.shape().head_dim; ++i) {
    test.cache().SetValue(
        test.slot(entry), false, i,
        factor * test.cache().Value(test.slot(entry), false, i));
  }
}

template <typename T>
void ExpectFarLogitsMatch(EntryCase<T>& test) {
  WindowRunner<T> runner(&test);
  ASSERT_EQ(runner.RunStats({}), "");
  ExpectLseMatches(test, runner.lse(), 4e-6);
  ASSERT_EQ(runner.RunColumns({}), "");
  // Errors of logits, which are as large as 600, are errors of weights.
  ExpectAttentionMatches(test, runner.attention(), 5e-4);
}

// fp32 holds no sum of the weights without a reference, and not with that of
// the first keys.
TEST_F(WindowScoresTest, LogitsMayBeFarFromZero) {
  EntryCase<simt::Half> test(
      {.num_heads = 1, .group_size = 2, .sizes = {150, 150}, .window = 20}, 10);
  for (int32_t e = 0; e < 150; ++e) {
    ScaleKey(test, test.offset(0) + e, e < 100 ? 1.0f : 150.0f);
    ScaleKey(test, test.offset(1) + e, e < 100 ? 150.0f : 1.0f);
  }
  ExpectFarLogitsMatch(test);
}

TEST_F(WindowScoresTest, AllLogitsMayBeFarBelowZero) {
  EntryCase<simt::Half> test(
      {.num_heads = 1, .group_size = 1, .sizes = {150}, .window = 1}, 11);
  for (int32_t e = 0; e < 150; ++e) {
    for (int32_t i = 0; i < 64; ++i) {
      const float query = simt::ToFloat(test.queries()[i]);
      const float key = test.cache().Value(test.slot(e), false, i);
      test.cache().SetValue(test.slot(e), false, i, key - 40.0f * query);
    }
  }
  double lse = 0.0;
  test.Weights(0, 0, 0, &lse);
  ASSERT_LT(lse, -100.0);
  ExpectFarLogitsMatch(test);
}

TEST_F(WindowScoresTest, TakesTheCallersLogSumExp) {
  EntryCase<simt::BFloat16> test(
      {.group_size = 2, .sizes = {70, 35}, .window = 9}, 6);
  WindowRunner<simt::BFloat16> runner(&test);
  for (int32_t list = 0; list < 2; ++list) {
    for (int32_t q = 0; q < 9; ++q) {
      for (int32_t g = 0; g < 2; ++g) {
        double lse = 0.0;
        test.Weights(list, q, g, &lse);
        runner.lse()[test.QueryRow(list, q, g)] = static_cast<float>(lse);
      }
    }
  }
  ASSERT_EQ(runner.RunColumns({}), "");
  ExpectAttentionMatches(test, runner.attention());
}

// h2o: every entry a query sees, the window's own included; added to what is
// there.
TEST_F(WindowScoresTest, SumsMatchFloat64) {
  for (const bool whole : {true, false}) {
    SCOPED_TRACE(whole);
    EntryCase<simt::BFloat16> test({.group_size = 5,
                                    .sizes = {70, 1, 40, 130},
                                    .window = 37,
                                    .whole_window = whole},
                                   7);
    WindowRunner<simt::BFloat16> runner(&test);
    ASSERT_EQ(runner.RunStats({}), "");
    runner.sums().assign(test.num_entries(), 0.5f);
    ASSERT_EQ(runner.RunColumns({.into_sums = true}), "");
    for (int32_t list = 0; list < test.num_lists(); ++list) {
      std::vector<double> sums(test.size(list), 0.5);
      for (int32_t q = 0; q < 37; ++q) {
        for (int32_t g = 0; g < 5; ++g) {
          const std::vector<double> weights = test.Weights(list, q, g, nullptr);
          for (int32_t e = 0; e < test.size(list); ++e) sums[e] += weights[e];
        }
      }
      for (int32_t e = 0; e < test.size(list); ++e) {
        ASSERT_NEAR(runner.sums()[test.offset(list) + e], sums[e],
                    3e-5 * sums[e]);
      }
    }
  }
}

TEST_F(WindowScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test(
      {.group_size = 3, .sizes = {170, 35}, .window = 19}, 8);
  WindowRunner<simt::BFloat16> runner(&test);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        const std::string error = runner.RunStats({.schedule = schedule});
        return error.empty() ? runner.RunColumns({.schedule = schedule})
                             : error;
      },
      [&] { return runner.Bits(); });
}

TEST_F(WindowScoresTest, NanKeyIsInEveryWeightOfItsListOnly) {
  EntryCase<simt::BFloat16> test(
      {.num_heads = 3, .group_size = 2, .sizes = {60, 80, 40}, .window = 5}, 9);
  test.cache().SetValue(test.slot(test.offset(1) + 7), false, 3, std::nanf(""));
  WindowRunner<simt::BFloat16> runner(&test);
  ASSERT_EQ(runner.RunStats({}), "");
  ASSERT_EQ(runner.RunColumns({}), "");
  for (int32_t list = 0; list < 3; ++list) {
    for (int32_t e = 0; e < test.CountPast(list); ++e) {
      EXPECT_EQ(std::isnan(runner.attention()[test.offset(list) * 2 + e]),
                list == 1);
    }
  }
}

}  // namespace
}  // namespace blockmgr
