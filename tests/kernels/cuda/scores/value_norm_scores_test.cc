// Sizes of projected values against float64.

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/norm_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

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

// Runs on a random case and expects what float64 gives.
template <typename T>
void ExpectNormsMatch(const EntryShape& shape, int64_t model_dim,
                      const NormOptions& options) {
  SCOPED_TRACE(testing::Message() << shape.head_dim << " " << shape.group_size);
  EntryCase<T> test(shape, 8);
  NormRunner<T> runner(&test, model_dim);
  ASSERT_EQ(runner.Run(options), "");
  ExpectNaive(test, runner, options.l2, options.per_query_head);
  EXPECT_EQ(runner.bank_conflicts(), 0);
}

template <typename T>
void CheckValueNorms(int32_t head_dim, int32_t group_size) {
  // Not a multiple of the columns of a block.
  ExpectNormsMatch<T>({.num_heads = head_dim == 64 ? 2 : 1,
                       .group_size = group_size,
                       .head_dim = head_dim,
                       .order = KvTensorOrder::kNhdApart,
                       .sizes = {70, 33}},
                      136, {});
}

TEST_F(ValueNormScoresTest, MatchFloat64) {
  using Half = simt::Half;
  for (const int32_t head_dim : {64, 128, 256}) {
    CheckValueNorms<simt::BFloat16>(head_dim, 2);
    CheckValueNorms<Half>(head_dim, 1);
  }
  for (int32_t group_size = 9; group_size <= 16; ++group_size) {
    ExpectNormsMatch<Half>({.group_size = group_size, .sizes = {17, 3}}, 24,
                           {.per_query_head = true});
  }
  ExpectNormsMatch<Half>({.group_size = 3, .sizes = {40, 0}}, 72,
                         {.l2 = true, .per_query_head = true});
  // Several CTAs for a long list, alone and beside lists of other lengths.
  ExpectNormsMatch<simt::BFloat16>(
      {.num_heads = 1, .group_size = 1, .sizes = {kProductRows + 40}}, 24, {});
  for (const bool per_query_head : {false, true}) {
    ExpectNormsMatch<Half>(
        {.group_size = 2, .sizes = {2 * kSplitEntries + 90, 0, 5, 70}}, 24,
        {.per_query_head = per_query_head});
  }
}

TEST_F(ValueNormScoresTest, ReadPoolsInEveryOrder) {
  ForEveryPool(EntryShape{.group_size = 2, .sizes = {40, 3, 0, 70}},
               [](const EntryShape& shape) {
                 ExpectNormsMatch<simt::BFloat16>(shape, 24, {});
               });
}

TEST_F(ValueNormScoresTest, SchedulesDoNotMatter) {
  EntryCase<simt::BFloat16> test(
      {.num_heads = 1, .group_size = 2, .head_dim = 128, .sizes = {40}}, 5);
  NormRunner<simt::BFloat16> runner(&test, 64);
  ExpectSchedulesDoNotMatter(
      [&](const simt::Schedule& schedule) {
        return runner.Run({.schedule = schedule});
      },
      [&] { return runner.norms(); });
}

}  // namespace
}  // namespace blockmgr
