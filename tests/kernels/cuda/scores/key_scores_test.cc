// keydiff and knorm against float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/key_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// From the definition.
template <typename T>
std::vector<double> NaiveKeyDiff(const EntryCase<T>& test, EntryCase<T>& values,
                                 int32_t list, KeyAnchor anchor,
                                 KeyMetric metric) {
  const int32_t dim = test.shape().head_dim;
  const int32_t size = test.size(list);
  std::vector<std::vector<double>> keys(size);
  std::vector<double> lengths(size);
  std::vector<double> mean(dim);
  for (int32_t e = 0; e < size; ++e) {
    for (int32_t i = 0; i < dim; ++i) {
      keys[e].push_back(
          values.cache().Value(test.slot(test.offset(list) + e), false, i));
      lengths[e] += keys[e][i] * keys[e][i];
    }
    lengths[e] = std::sqrt(lengths[e]);
    const double by =
        anchor == KeyAnchor::kRaw ? 1.0 : std::max(lengths[e], 1e-12);
    for (int32_t i = 0; i < dim; ++i) mean[i] += keys[e][i] / by / size;
  }
  double anchor_length = 0.0;
  for (const double x : mean) anchor_length += x * x;
  anchor_length =
      anchor == KeyAnchor::kPairwise ? 1.0 : std::sqrt(anchor_length);
  std::vector<double> scores;
  for (int32_t e = 0; e < size; ++e) {
    double dot = 0.0;
    double distance = 0.0;
    for (int32_t i = 0; i < dim; ++i) {
      dot += keys[e][i] * mean[i];
      distance += std::pow(keys[e][i] - mean[i], 2);
    }
    switch (metric) {
      case KeyMetric::kCosine:
        scores.push_back(-dot / (std::max(lengths[e], 1e-8) * anchor_length));
        break;
      case KeyMetric::kDot:
        scores.push_back(-dot);
        break;
      case KeyMetric::kEuclidean:
        scores.push_back(std::sqrt(distance));
        break;
      case KeyMetric::kNorm:
        scores.push_back(-lengths[e]);
        break;
    }
  }
  return scores;
}

template <typename T>
void ExpectNaive(EntryCase<T>& test, KeyRunner<T>& runner, KeyAnchor anchor,
                 KeyMetric metric) {
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    const std::vector<double> expected =
        NaiveKeyDiff(test, test, list, anchor, metric);
    double error = 0.0;
    double norm = 0.0;
    for (int32_t e = 0; e < test.size(list); ++e) {
      error +=
          std::pow(runner.scores()[test.offset(list) + e] - expected[e], 2);
      norm += std::pow(expected[e], 2);
    }
    // fp32 throughout; a list of one entry is its own anchor.
    EXPECT_TRUE(std::sqrt(error) <= 1e-5 * std::sqrt(norm) + 1e-6)
        << "list " << list << ": " << std::sqrt(error / norm);
  }
}

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
    ASSERT_EQ(runner.Run(anchor, metric, {}), "");
    ExpectNaive(test, runner, anchor, metric);
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
  ForEveryPool(
      EntryShape{.sizes = {70, 1, 90, 33}}, [](const EntryShape& shape) {
        EntryCase<simt::BFloat16> test(shape, 6);
        KeyRunner<simt::BFloat16> runner(&test);
        ASSERT_EQ(runner.Run(KeyAnchor::kNormalized, KeyMetric::kCosine, {}),
                  "");
        ExpectNaive(test, runner, KeyAnchor::kNormalized, KeyMetric::kCosine);
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
  ASSERT_EQ(runner.Run(KeyAnchor::kNormalized, KeyMetric::kCosine, {}), "");
  ExpectNaive(test, runner, KeyAnchor::kNormalized, KeyMetric::kCosine);
  ASSERT_EQ(runner.Run(KeyAnchor::kRaw, KeyMetric::kEuclidean, {}), "");
  ExpectNaive(test, runner, KeyAnchor::kRaw, KeyMetric::kEuclidean);
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
