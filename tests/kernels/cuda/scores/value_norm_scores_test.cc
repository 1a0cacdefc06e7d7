// Sizes of projected values against float64 and the CPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/norm_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

using Order = simt::Schedule::Order;

// One query head's norm of one entry.
template <typename T>
double NaiveNorm(EntryCase<T>& test, const NormRunner<T>& runner, bool l2,
                 int32_t list, int32_t g, int32_t entry) {
  const int32_t dim = test.shape().head_dim;
  const int32_t head = list % test.shape().num_heads;
  const SlotIndex slot = test.slot(test.offset(list) + entry);
  const int64_t matrix =
      (int64_t{head} * test.shape().group_size + g) * dim * runner.model_dim();
  double norm = 0.0;
  for (int64_t m = 0; m < runner.model_dim(); ++m) {
    double x = 0.0;
    for (int32_t d = 0; d < dim; ++d) {
      x += double{test.cache().Value(slot, true, d)} *
           double{simt::ToFloat(
               runner.projection()[matrix + d * runner.model_dim() + m])};
    }
    norm += l2 ? x * x : std::abs(x);
  }
  return l2 ? std::sqrt(norm) : norm;
}

template <typename T>
void ExpectNaive(EntryCase<T>& test, const NormRunner<T>& runner, bool l2,
                 bool per_query_head) {
  const int32_t group_size = test.shape().group_size;
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    for (int32_t e = 0; e < test.size(list); ++e) {
      double mean = 0.0;
      for (int32_t g = 0; g < group_size; ++g) {
        const double norm = NaiveNorm(test, runner, l2, list, g, e);
        mean += norm / group_size;
        if (!per_query_head) continue;
        ASSERT_NEAR(runner.norms()[test.offset(list) * group_size +
                                   int64_t{g} * test.size(list) + e],
                    norm, 1e-5 * norm);
      }
      if (!per_query_head) {
        ASSERT_NEAR(runner.norms()[test.offset(list) + e], mean, 1e-5 * mean)
            << list << " " << e;
      }
    }
  }
}

class ValueNormScoresTest : public DeviceTest {};

template <typename T>
void CheckValueNorms(int32_t head_dim, int32_t group_size) {
  SCOPED_TRACE(testing::Message() << head_dim << " " << group_size);
  EntryCase<T> test({.num_heads = head_dim == 64 ? 2 : 1,
                     .group_size = group_size,
                     .head_dim = head_dim,
                     .order = KvTensorOrder::kNhdApart,
                     .sizes = {70, 33}},
                    static_cast<uint64_t>(head_dim));
  // Not a multiple of the columns of a block.
  NormRunner<T> runner(&test, 136);
  ASSERT_EQ(runner.Run({}), "");
  ExpectNaive(test, runner, false, false);
  EXPECT_EQ(runner.bank_conflicts(), 0);
}

TEST_F(ValueNormScoresTest, MatchFloat64) {
  for (const int32_t head_dim : {64, 128, 256}) {
    CheckValueNorms<simt::BFloat16>(head_dim, 2);
    CheckValueNorms<simt::Half>(head_dim, 1);
  }
}

TEST_F(ValueNormScoresTest, MatchFloat64WithNineToSixteenQueryHeads) {
  for (int32_t group_size = 9; group_size <= 16; ++group_size) {
    SCOPED_TRACE(group_size);
    EntryCase<simt::Half> test({.group_size = group_size, .sizes = {17, 3}}, 8);
    NormRunner<simt::Half> runner(&test, 24);
    ASSERT_EQ(runner.Run({.per_query_head = true}), "");
    ExpectNaive(test, runner, false, true);
  }
}

void CheckValueNormPools(bool far) {
  const EntryShape shape = {
      .group_size = 2, .far = far, .sizes = {40, 3, 0, 70}};
  ForEveryPoolOrder(shape, [](const EntryShape& in_order) {
    EntryCase<simt::BFloat16> test(in_order, 7);
    NormRunner<simt::BFloat16> runner(&test, 24);
    ASSERT_EQ(runner.Run({}), "");
    ExpectNaive(test, runner, false, false);
  });
}

TEST_F(ValueNormScoresTest, ReadPoolsInEveryOrder) {
  CheckValueNormPools(false);
}
TEST_F(ValueNormScoresTest, OffsetsBeyond32BitsAreRight) {
  CheckValueNormPools(true);
}

TEST_F(ValueNormScoresTest, PerQueryHeadAndL2MatchFloat64) {
  EntryCase<simt::Half> test({.group_size = 3, .sizes = {40, 0}}, 2);
  NormRunner<simt::Half> runner(&test, 72);
  ASSERT_EQ(runner.Run({.l2 = true, .per_query_head = true}), "");
  ExpectNaive(test, runner, true, true);
}

TEST_F(ValueNormScoresTest, SeveralCtasCoverALongList) {
  EntryCase<simt::BFloat16> test(
      {.num_heads = 1, .group_size = 1, .sizes = {kProductRows + 40}}, 3);
  NormRunner<simt::BFloat16> runner(&test, 24);
  ASSERT_EQ(runner.Run({}), "");
  ExpectNaive(test, runner, false, false);
}

TEST_F(ValueNormScoresTest, ListsOfOtherLengthsBesideALongOne) {
  EntryCase<simt::Half> test(
      {.group_size = 2, .sizes = {2 * kSplitEntries + 90, 0, 5, 70}}, 6);
  NormRunner<simt::Half> runner(&test, 24);
  for (const bool per_query_head : {false, true}) {
    ASSERT_EQ(runner.Run({.per_query_head = per_query_head}), "");
    ExpectNaive(test, runner, false, per_query_head);
  }
}

TEST_F(ValueNormScoresTest, AgreeWithTheCpuBackend) {
  EntryCase<simt::BFloat16> test({.group_size = 2, .sizes = {40, 65}}, 4);
  NormRunner<simt::BFloat16> runner(&test, 136);
  ASSERT_EQ(runner.Run({}), "");
  std::vector<float> projection;
  for (const simt::BFloat16 x : runner.projection()) {
    projection.push_back(simt::ToFloat(x));
  }
  std::vector<float> expected(test.num_entries());
  const auto cpu = test.OnCpu(0);
  test.MakeBackend()->ValueNorms({.layer = cpu->batch.layer,
                                  .norm = ValueNorm::kL1,
                                  .entries = cpu->batch.entries,
                                  .output_projection = projection.data(),
                                  .model_dim = 136,
                                  .per_query_head = false,
                                  .norms = expected});
  for (int64_t e = 0; e < test.num_entries(); ++e) {
    ASSERT_NEAR(runner.norms()[e], expected[e], 1e-5 * expected[e]);
  }
}

TEST_F(ValueNormScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test(
      {.num_heads = 1, .group_size = 2, .head_dim = 128, .sizes = {40}}, 5);
  NormRunner<simt::BFloat16> runner(&test, 64);
  ASSERT_EQ(runner.Run({}), "");
  const auto expected = runner.norms();
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_EQ(runner.Run({.schedule = {.order = seed == 0 ? Order::kReverse
                                                          : Order::kRandom,
                                       .seed = seed}}),
              "");
    EXPECT_EQ(runner.norms(), expected);
  }
}

}  // namespace
}  // namespace blockmgr
