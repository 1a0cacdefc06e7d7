// Medians of keys: exactly those of the numbers they are of, and scores against
// float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/key_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// Of the values that divide(key's element, entry) says; NaN if one is.
template <typename T, typename Divide>
double MedianOf(EntryCase<T>& test, int32_t list, int32_t channel,
                const Divide& divide) {
  std::vector<double> values;
  values.reserve(test.size(list));
  for (int64_t i = test.offset(list); i < test.offset(list) + test.size(list);
       ++i) {
    values.push_back(
        divide(test.cache().Value(test.slot(i), false, channel), i));
    if (std::isnan(values.back())) return values.back();
  }
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2.0;
}

// The kernels' own lengths, which are checked apart.
template <typename T>
void ExpectExactMedians(EntryCase<T>& test, const KeyRunner<T>& runner) {
  const int32_t dim = test.shape().head_dim;
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    for (int32_t i = 0; i < dim && test.size(list) > 0; ++i) {
      const double expected =
          MedianOf(test, list, i, [&](float x, int64_t entry) {
            return double{x / runner.lengths()[entry]};
          });
      const float got = runner.medians()[int64_t{list} * dim + i];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << list << " " << i;
      } else {
        ASSERT_EQ(got, static_cast<float>(expected)) << list << " " << i;
      }
    }
  }
}

template <typename T>
void ExpectLengths(EntryCase<T>& test, const KeyRunner<T>& runner) {
  for (int64_t entry = 0; entry < test.num_entries(); ++entry) {
    double square = 0.0;
    for (int32_t i = 0; i < test.shape().head_dim; ++i) {
      square +=
          std::pow(double{test.cache().Value(test.slot(entry), false, i)}, 2);
    }
    const double length = std::max(std::sqrt(square), 1e-12);
    ASSERT_NEAR(runner.lengths()[entry], length, 1e-6 * length);
  }
}

template <typename T>
void CheckMedians(int32_t head_dim, const std::vector<KeyMetric>& metrics) {
  EntryCase<T> test({.head_dim = head_dim,
                     .page_size = head_dim == 64 ? 32 : 16,
                     .order = KvTensorOrder::kHnd,
                     .sizes = {70, 1, 301, 2}},
                    static_cast<uint64_t>(head_dim));
  KeyRunner<T> runner(&test);
  for (const KeyMetric metric : metrics) {
    SCOPED_TRACE(static_cast<int32_t>(metric));
    ExpectRunMatches(test, runner, KeyAnchor::kMedian, metric);
  }
  ExpectLengths(test, runner);
  ExpectExactMedians(test, runner);
}

class KeyMediansTest : public DeviceTest {};

TEST_F(KeyMediansTest, MatchFloat64) {
  CheckMedians<simt::Half>(
      64, {KeyMetric::kCosine, KeyMetric::kDot, KeyMetric::kEuclidean});
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    CheckMedians<simt::BFloat16>(head_dim, {KeyMetric::kCosine});
  }
}

TEST_F(KeyMediansTest, AreOfPoolsInEveryOrder) {
  ForEveryPool(
      EntryShape{.sizes = {70, 1, 90, 2}}, [](const EntryShape& shape) {
        EntryCase<simt::BFloat16> test(shape, 6);
        KeyRunner<simt::BFloat16> runner(&test);
        ExpectRunMatches(test, runner, KeyAnchor::kMedian, KeyMetric::kCosine);
        ExpectLengths(test, runner);
        ExpectExactMedians(test, runner);
      });
}

// More than a thread and a split has, beside lists of a few entries and none.
TEST_F(KeyMediansTest, AreExactWhereOneListIsLong) {
  EntryCase<simt::Half> test({.sizes = {2 * kSplitEntries + 90, 0, 5, 70}}, 2);
  KeyRunner<simt::Half> runner(&test);
  ExpectRunMatches(test, runner, KeyAnchor::kMedian, KeyMetric::kCosine);
  ExpectExactMedians(test, runner);
}

// Values that are equal around the middle, of either sign, zeros of both, and
// keys without length; one key of infinity, which is NaN in its own channel.
TEST_F(KeyMediansTest, AreExactForEqualAndExtremeValues) {
  EntryCase<simt::BFloat16> test({.num_heads = 3, .sizes = {40, 41, 60}}, 3);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < test.num_entries(); ++i) {
    const SlotIndex slot = test.slot(i);
    for (int32_t k = 0; k < 64; ++k) {
      const int64_t draw = (i * 7 + k * 3) % (k % 5 + 2);
      const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e30f, -1e-30f};
      test.cache().SetValue(slot, false, k, i % 9 == 0 ? 0.0f : values[draw]);
    }
  }
  test.cache().SetValue(test.slot(test.offset(2) + 5), false, 9, kInfinity);
  KeyRunner<simt::BFloat16> runner(&test);
  ASSERT_EQ(runner.Run(KeyAnchor::kMedian, KeyMetric::kDot, {}), "");
  ExpectExactMedians(test, runner);
  for (int32_t k = 0; k < 64; ++k) {
    EXPECT_EQ(std::isnan(runner.medians()[2 * 64 + k]), k == 9);
  }
}

TEST_F(KeyMediansTest, NanKeyIsInEveryScoreOfItsListOnly) {
  EntryCase<simt::BFloat16> test({.num_heads = 3, .sizes = {40, 50, 30}}, 4);
  test.cache().SetValue(test.slot(test.offset(1) + 9), false, 1, std::nanf(""));
  KeyRunner<simt::BFloat16> runner(&test);
  ASSERT_EQ(runner.Run(KeyAnchor::kMedian, KeyMetric::kCosine, {}), "");
  for (int64_t i = 0; i < test.num_entries(); ++i) {
    EXPECT_EQ(std::isnan(runner.scores()[i]),
              i >= test.offset(1) && i < test.offset(2));
  }
}

TEST_F(KeyMediansTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test({.head_dim = 128, .sizes = {140, 51}}, 5);
  KeyRunner<simt::BFloat16> runner(&test);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run(KeyAnchor::kMedian, KeyMetric::kCosine, schedule);
      },
      [&] { return runner.scores(); });
}

}  // namespace
}  // namespace blockmgr
