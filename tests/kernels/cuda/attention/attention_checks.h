// What the tests of both attention kernels ask of a result.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_
#define TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/ids.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"

namespace blockmgr {

// Rounding of the result to bf16 is 2^-9 at most, that of the weights as much
// again; fp16 has eight times the precision.
inline constexpr double kBFloat16Tolerance = 4e-3;
inline constexpr double kHalfTolerance = 5e-4;

template <typename T>
inline constexpr double kAttentionTolerance =
    std::is_same_v<T, simt::BFloat16> ? kBFloat16Tolerance : kHalfTolerance;

// Two heads of three sequences: empty, short and long regions and tails.
inline AttentionShape RaggedShape(int32_t head_dim, int32_t group_size) {
  return {.num_heads = 2,
          .group_size = group_size,
          .head_dim = head_dim,
          .page_size = 16,
          .region_lengths = {0, 70, 33, 0, 5, 129},
          .tail_lengths = {19, 0, 64}};
}

// Two heads of these regions and tails.
inline AttentionShape ShapeOf(int32_t head_dim, int32_t group_size,
                              std::vector<int32_t> region_lengths,
                              std::vector<int32_t> tail_lengths) {
  AttentionShape shape = RaggedShape(head_dim, group_size);
  shape.region_lengths = std::move(region_lengths);
  shape.tail_lengths = std::move(tail_lengths);
  return shape;
}

// A runner's last result against float64.
template <template <typename> class Runner, typename T>
void ExpectMatches(const Runner<T>& runner) {
  const AttentionError error = runner.Error();
  // Written so that NaN fails.
  EXPECT_TRUE(error.relative <= kAttentionTolerance<T>) << error.relative;
  EXPECT_TRUE(error.lse <= 2e-5) << error.lse;
}

// Runs, then ExpectMatches().
template <template <typename> class Runner, typename T>
void ExpectRunMatches(Runner<T>& runner,
                      const typename Runner<T>::Options& options) {
  ASSERT_EQ(runner.Run(options), "");
  ExpectMatches(runner);
}

// Expects the bits of no sinks from sinks of -infinity. `more` are the runner's
// arguments after the shape.
template <typename Runner, typename... More>
void ExpectNoSinksChangeNoBit(AttentionShape shape,
                              const typename Runner::Options& options,
                              const More&... more) {
  Runner without(shape, more...);
  shape.with_sinks = true;
  Runner with(shape, more...);
  std::ranges::fill(with.test().sinks(),
                    -std::numeric_limits<float>::infinity());
  ASSERT_EQ(without.Run(options), "");
  ASSERT_EQ(with.Run(options), "");
  EXPECT_EQ(with.Bits(), without.Bits());
}

// Expects of keys of zeros, whose weights next to the sinks are subnormal in
// fp16, the precision that they have without sinks.
template <template <typename> class Runner>
void ExpectFarSinksCostNoPrecision(
    Runner<simt::Half>& runner,
    const typename Runner<simt::Half>::Options& options) {
  auto& test = runner.test();
  for (int32_t list = 0; list < test.num_lists(); ++list) {
    for (const SlotIndex slot : test.slots(list)) {
      for (int32_t i = 0; i < test.shape().head_dim; ++i) {
        test.SetValue(slot, false, i, 0.0f);
      }
    }
  }
  std::ranges::fill(test.sinks(), 12.0f);
  ExpectRunMatches(runner, options);
}

// Expects the same bits under a window over all positions as under none. `more`
// are the runner's arguments after the shape.
template <typename Runner, typename... More>
void ExpectWindowChangesNoBit(AttentionShape shape, int32_t window,
                              const typename Runner::Options& options,
                              const More&... more) {
  Runner all(shape, more...);
  shape.window = window;
  Runner under_window(shape, more...);
  ASSERT_EQ(all.Run(options), "");
  ASSERT_EQ(under_window.Run(options), "");
  EXPECT_EQ(under_window.Bits(), all.Bits());
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_
