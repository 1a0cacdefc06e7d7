// expected_attention against float64.

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/expected_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// Covariances have 16 bits in bf16 (measured: at most 4e-6) and 22 in fp16
// (7e-7); sums are of fp32.
constexpr double kTolerance = 1e-5;

class ExpectedScoresTest : public DeviceTest {};

TEST_F(ExpectedScoresTest, MatchFloat64) {
  EntryCase<simt::BFloat16> test(
      {.group_size = 3, .sizes = {70, 5, 0, 190}, .whole_window = false}, 1);
  ExpectedRunner<simt::BFloat16> runner(&test);
  for (const bool cov : {true, false}) {
    for (const bool vnorm : {true, false}) {
      SCOPED_TRACE(cov * 2 + vnorm);
      const ExpectedOptions options = {.cov = cov, .vnorm = vnorm};
      ASSERT_EQ(runner.Run(options), "");
      EXPECT_LE(runner.Error(options), kTolerance);
      EXPECT_EQ(runner.bank_conflicts(), 0);
    }
  }
}

template <typename T>
void ExpectScoresMatch(const EntryShape& shape,
                       const ExpectedOptions& options) {
  SCOPED_TRACE(testing::Message() << shape.head_dim << " " << shape.group_size);
  EntryCase<T> test(shape, 6);
  ExpectedRunner<T> runner(&test);
  ASSERT_EQ(runner.Run(options), "");
  EXPECT_LE(runner.Error(options), kTolerance);
  EXPECT_EQ(runner.bank_conflicts(), 0);
}

template <typename T>
void CheckShape(int32_t head_dim, int32_t group_size) {
  ExpectScoresMatch<T>({.num_heads = 1,
                        .group_size = group_size,
                        .head_dim = head_dim,
                        .page_size = 32,
                        .order = KvTensorOrder::kNhdApart,
                        .sizes = {90}},
                       {.n_sink = 3, .eps = 0.0f});
}

TEST_F(ExpectedScoresTest, MatchFloat64AtOtherSizes) {
  CheckShape<simt::Half>(64, 16);  // more query heads than a row has lanes
  for (const int32_t head_dim : {128, 256}) {
    CheckShape<simt::Half>(head_dim, 2);
    CheckShape<simt::BFloat16>(head_dim, 1);
  }
  for (int32_t group_size = 9; group_size < 16; ++group_size) {
    CheckShape<simt::BFloat16>(64, group_size);
  }
  // More entries than a CTA of any of the kernels takes, beside fewer and none.
  ExpectScoresMatch<simt::BFloat16>(
      {.group_size = 2, .sizes = {2 * kSplitEntries + 90, 0, 5, 70}}, {});
}

TEST_F(ExpectedScoresTest, ReadPoolsInEveryOrder) {
  ForEveryPool(EntryShape{.group_size = 2, .sizes = {40, 3, 0, 70}},
               [](const EntryShape& shape) {
                 ExpectScoresMatch<simt::BFloat16>(shape, {});
               });
}

// A list of sinks only, one with some and one without: nobody pays sinks, and
// what is in their keys and values is in no score.
TEST_F(ExpectedScoresTest, SinksAreInfiniteAndInNoOtherScore) {
  EntryCase<simt::BFloat16> test({.num_heads = 3,
                                  .group_size = 2,
                                  .sizes = {2, 90, 60},
                                  .whole_window = false},
                                 3);
  const int32_t n_sink = test.position(1) + 1;
  ExpectedRunner<simt::BFloat16> runner(&test);
  int32_t num_sinks = 0;
  for (int64_t i = 0; i < test.num_entries(); ++i) {
    if (test.position(i) >= n_sink) continue;
    ++num_sinks;
    test.cache().SetValue(test.slot(i), false, 1, std::nanf(""));
    test.cache().SetValue(test.slot(i), true, 1, std::nanf(""));
  }
  ASSERT_GT(num_sinks, 4);
  ASSERT_LT(num_sinks, 140);
  const ExpectedOptions options = {.n_sink = n_sink};
  ASSERT_EQ(runner.Run(options), "");
  EXPECT_LE(runner.Error(options), kTolerance);
}

TEST_F(ExpectedScoresTest, NanKeyIsInEveryScoreOfItsListAndNanValueInItsOwn) {
  EntryCase<simt::Half> test(
      {.num_heads = 3, .group_size = 2, .sizes = {60, 80, 40}}, 4);
  test.cache().SetValue(test.slot(test.offset(1) + 70), false, 3,
                        std::nanf(""));
  test.cache().SetValue(test.slot(test.offset(2) + 7), true, 3, std::nanf(""));
  ExpectedRunner<simt::Half> runner(&test);
  ASSERT_EQ(runner.Run({.n_sink = 0}), "");
  for (int64_t i = 0; i < test.num_entries(); ++i) {
    const bool expected =
        (i >= test.offset(1) && i < test.offset(2)) || i == test.offset(2) + 7;
    EXPECT_EQ(std::isnan(runner.scores()[i]), expected) << i;
  }
}

TEST_F(ExpectedScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test({.group_size = 2, .sizes = {270, 35}}, 5);
  ExpectedRunner<simt::BFloat16> runner(&test);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run({.schedule = schedule});
      },
      [&] { return runner.scores(); });
}

}  // namespace
}  // namespace blockmgr
