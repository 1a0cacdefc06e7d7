// keydiff and knorm against float64.

#include <cmath>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/key_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

template <typename T>
void CheckKeyScores(int32_t head_dim) {
  EntryCase<T> test({.head_dim = head_dim,
                     .page_size = head_dim == 64 ? 32 : 16,
                     .order = KvTensorOrder::kHnd,
                     .sizes = {70, 1, 300, 33}},
                    head_dim);
  KeyRunner<T> runner(&test);
  for (const auto& [anchor, metric] :
       {std::pair{KeyAnchor::kNormalized, KeyMetric::kCosine},
        std::pair{KeyAnchor::kNormalized, KeyMetric::kEuclidean},
        std::pair{KeyAnchor::kRaw, KeyMetric::kCosine},
        std::pair{KeyAnchor::kRaw, KeyMetric::kDot},
        std::pair{KeyAnchor::kPairwise, KeyMetric::kCosine},
        std::pair{KeyAnchor::kNormalized, KeyMetric::kNorm}}) {
    SCOPED_TRACE(static_cast<int32_t>(metric));
    ExpectRunMatches(test, runner, anchor, metric);
  }
}

class KeyScoresTest : public DeviceTest {};

TEST_F(KeyScoresTest, MatchFloat64) {
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    CheckKeyScores<simt::BFloat16>(head_dim);
    CheckKeyScores<simt::Half>(head_dim);
  }
}

TEST_F(KeyScoresTest, ReadPoolsInEveryOrder) {
  ForEveryPool(EntryShape{.sizes = {70, 1, 90, 33}},
               [](const EntryShape& shape) {
                 EntryCase<simt::BFloat16> test(shape, 6);
                 KeyRunner<simt::BFloat16> runner(&test);
                 ExpectRunMatches(test, runner, KeyAnchor::kNormalized,
                                  KeyMetric::kCosine);
               });
}

// A list of more splits than threads add up a channel, among lists of one or
// none, which have no more than their own to add up.
TEST_F(KeyScoresTest, AnchorsCoverAllSplits) {
  EntryCase<simt::Half> test(
      {.head_dim = 128, .sizes = {9 * kRowSplitEntries + 90, 0, 5, 70}}, 2);
  // The last keys point elsewhere, so that leaving them out shows.
  for (int32_t e = 9 * kRowSplitEntries; e < test.size(0); ++e) {
    test.cache().SetValue(test.slot(e), false, 5, 40.0f);
  }
  KeyRunner<simt::Half> runner(&test);
  ExpectRunMatches(test, runner, KeyAnchor::kNormalized, KeyMetric::kCosine);
  ExpectRunMatches(test, runner, KeyAnchor::kRaw, KeyMetric::kEuclidean);
}

TEST_F(KeyScoresTest, ZeroKeyScoresZeroAndNanStaysInItsList) {
  EntryCase<simt::BFloat16> test({.sizes = {40, 50}}, 4);
  for (int32_t i = 0; i < 64; ++i) {
    test.cache().SetValue(test.slot(3), false, i, 0.0f);
  }
  test.cache().SetValue(test.slot(test.offset(1) + 9), false, 1, std::nanf(""));
  KeyRunner<simt::BFloat16> runner(&test);
  ASSERT_EQ(runner.Run(KeyAnchor::kNormalized, KeyMetric::kCosine, {}), "");
  EXPECT_EQ(runner.scores()[3], 0.0f);
  for (int64_t e = 0; e < 90; ++e) {
    EXPECT_EQ(std::isnan(runner.scores()[e]), e >= 40);
  }
}

TEST_F(KeyScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test({.head_dim = 128, .sizes = {600, 50}}, 5);
  KeyRunner<simt::BFloat16> runner(&test);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run(KeyAnchor::kNormalized, KeyMetric::kCosine, schedule);
      },
      [&] { return runner.scores(); });
}

}  // namespace
}  // namespace blockmgr
