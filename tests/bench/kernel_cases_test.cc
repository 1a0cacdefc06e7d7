// The benchmark's decode attention against float64 from the file format's
// definition.
#include "bench/kernel_cases.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class KernelCasesTest : public DeviceTest {};

double Element(uint64_t seed, int64_t index) {
  const uint64_t bits =
      SplitMix64((seed << 40) + static_cast<uint64_t>(index)) >> 48;
  return FromBFloat16(ToBFloat16(static_cast<float>(bits) / 32768.0f - 1.0f));
}

// One query head over one list, in float64.
std::vector<double> Reference(const KernelProblem& problem, int64_t list,
                              int64_t first_page, int64_t q_row) {
  const int64_t dim = problem.head_dim;
  const int64_t page_size = problem.page_size;
  const auto element = [&](int32_t token, int64_t part, int64_t i) {
    const int64_t page = problem.page_ids[first_page + token / page_size];
    const int64_t row = (page * 2 + part) * page_size + token % page_size;
    return Element(problem.seed, row * dim + i);
  };
  const int32_t length = problem.lengths[list];
  std::vector<double> logits(length);
  double max = -std::numeric_limits<double>::infinity();
  for (int32_t token = 0; token < length; ++token) {
    for (int64_t i = 0; i < dim; ++i) {
      logits[token] +=
          element(token, 0, i) * Element(problem.seed + 1, q_row * dim + i);
    }
    logits[token] /= std::sqrt(static_cast<double>(dim));
    max = std::max(max, logits[token]);
  }
  double sum = 0;
  std::vector<double> output(dim);
  for (int32_t token = 0; token < length; ++token) {
    const double weight = std::exp(logits[token] - max);
    sum += weight;
    for (int64_t i = 0; i < dim; ++i) {
      output[i] += weight * element(token, 1, i);
    }
  }
  for (double& x : output) x /= sum;
  return output;
}

TEST_F(KernelCasesTest, DecodeIsAttentionOfTheProblem) {
  const auto problem =
      MakeKernelProblem({.num_heads = 2,
                         .group_size = 3,
                         .mean_length = 100,
                         .kv_bytes = int64_t{6} * 100 * 512,
                         .distribution = LengthDistribution::kRagged});
  ASSERT_TRUE(problem.ok());
  for (const char* name : {"decode", "decode_invariant"}) {
    const auto device = MakeKernelTestDevice();
    const auto on_device = DeviceProblem::Create(
        *problem, {.rotated_bytes = 1, .model_dim = 64}, device.get());
    ASSERT_TRUE(on_device.ok()) << on_device.status();
    for (const KernelCase& c : (*on_device)->cases()) {
      if (c.kernel == name) c.launch(0);
    }
    const auto output = (*on_device)->ReadDecodeOutput();
    ASSERT_TRUE(output.ok()) << output.status();
    double error = 0;
    double norm = 0;
    int64_t page = 0;
    for (int64_t list = 0; list < std::ssize(problem->lengths); ++list) {
      for (int64_t g = 0; g < problem->group_size; ++g) {
        const int64_t row = list * problem->group_size + g;
        const std::vector<double> want = Reference(*problem, list, page, row);
        for (int64_t i = 0; i < problem->head_dim; ++i) {
          const double got =
              FromBFloat16((*output)[row * problem->head_dim + i]);
          error += std::pow(got - want[i], 2);
          norm += want[i] * want[i];
        }
      }
      page += CeilDiv(problem->lengths[list], problem->page_size);
    }
    EXPECT_LE(std::sqrt(error / norm), 4e-3) << name;
  }
}

}  // namespace
}  // namespace blockmgr
