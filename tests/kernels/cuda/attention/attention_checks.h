// What the tests of both attention kernels ask of a result.
#ifndef TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_
#define TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/attention_cases.h"

namespace blockmgr {

// Rounding of the result to bf16 is 2^-9 at most, that of the weights as much
// again; fp16 has eight times the precision.
inline constexpr double kBFloat16Tolerance = 4e-3;
inline constexpr double kHalfTolerance = 5e-4;

// Two heads of three sequences: empty, short and long regions and tails.
inline AttentionShape RaggedShape(int32_t head_dim, int32_t group_size) {
  return {.num_heads = 2,
          .group_size = group_size,
          .head_dim = head_dim,
          .page_size = 16,
          .region_lengths = {0, 70, 33, 0, 5, 129},
          .tail_lengths = {19, 0, 64}};
}

// A runner's last result against float64.
template <typename Runner>
void ExpectMatches(const Runner& runner, double tolerance) {
  const AttentionError error = runner.Error();
  // Written so that NaN fails.
  EXPECT_TRUE(error.relative <= tolerance) << error.relative;
  EXPECT_TRUE(error.lse <= 2e-5) << error.lse;
}

// A runner's last output against the CPU backend's attention of the last
// num_queries[i] tokens of every sequence.
template <typename Runner>
void ExpectAgreesWithCpu(Runner& runner,
                         const std::vector<int32_t>& num_queries,
                         double tolerance) {
  const std::vector<float> expected = runner.test().AttentionOnCpu(
      *MakeCpuBackend(runner.test()), num_queries, runner.queries());
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(simt::ToFloat(runner.output()[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_TRUE(std::sqrt(error / norm) <= tolerance) << std::sqrt(error / norm);
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_ATTENTION_ATTENTION_CHECKS_H_
