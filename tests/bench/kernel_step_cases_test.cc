// The attention of the benchmark against float64 from the definition of the
// file format.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench/kernel_cases.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class KernelStepCasesTest : public DeviceTest {};

uint16_t Rounded(float value, ElementType type) {
  return type == ElementType::kHalf ? ToFloat16(value) : ToBFloat16(value);
}
double Widened(uint16_t bits, ElementType type) {
  return type == ElementType::kHalf ? FromFloat16(bits) : FromBFloat16(bits);
}

double Element(const KernelProblem& problem, uint64_t seed, int64_t index) {
  const uint64_t bits =
      SplitMix64((seed << 40) + static_cast<uint64_t>(index)) >> 48;
  const float value = static_cast<float>(bits) / 32768.0f - 1.0f;
  return Widened(Rounded(value, problem.element_type), problem.element_type);
}

// Page and place of the tokens that a list attends to, its tail's last.
std::vector<std::pair<int64_t, int64_t>> PlacesOf(const KernelProblem& problem,
                                                  int64_t list) {
  const int64_t page_size = problem.page_size;
  int64_t first_page = 0;
  for (int64_t before = 0; before < list; ++before) {
    first_page += CeilDiv<int64_t>(problem.lengths[before], page_size);
  }
  std::vector<std::pair<int64_t, int64_t>> places;
  for (int64_t i = 0; i < problem.lengths[list]; ++i) {
    places.emplace_back(problem.page_ids[first_page + i / page_size],
                        i % page_size);
  }
  const int64_t sequence = list / problem.num_heads;
  int64_t first_block = 0;
  for (int64_t before = 0; before < sequence; ++before) {
    first_block += CeilDiv<int64_t>(problem.tail_lengths[before], page_size);
  }
  for (int64_t i = 0; i < problem.tail_lengths[sequence]; ++i) {
    const int64_t block = problem.tail_blocks[first_block + i / page_size];
    places.emplace_back(block * problem.num_heads + list % problem.num_heads,
                        i % page_size);
  }
  return places;
}

// The row of K (part 0) or V (part 1) in a pool of this order, from the shapes
// in KvTensorOrder's comments.
int64_t RowOf(const KernelProblem& problem, KvTensorOrder order, int64_t page,
              int64_t part, int64_t offset) {
  const int64_t num_heads = problem.num_heads;
  const int64_t size = problem.page_size;
  const int64_t num_blocks = CeilDiv<int64_t>(problem.num_pages, num_heads);
  const int64_t block = page / num_heads;
  const int64_t head = page % num_heads;
  switch (order) {
    case KvTensorOrder::kPages:
      return ((block * num_heads + head) * 2 + part) * size + offset;
    case KvTensorOrder::kHnd:
      return ((block * 2 + part) * num_heads + head) * size + offset;
    case KvTensorOrder::kNhd:
      return ((block * 2 + part) * size + offset) * num_heads + head;
    case KvTensorOrder::kHndApart:
      return ((part * num_blocks + block) * num_heads + head) * size + offset;
    case KvTensorOrder::kNhdApart:
      return ((part * num_blocks + block) * size + offset) * num_heads + head;
    case KvTensorOrder::kHndPairs:
      return ((block * num_heads + head) * size + offset) * 2 + part;
    case KvTensorOrder::kNhdPairs:
      return ((block * size + offset) * num_heads + head) * 2 + part;
  }
  return -1;
}

// One query head over one list, in float64.
std::vector<double> Reference(const KernelProblem& problem, KvTensorOrder order,
                              int64_t list, int64_t q_row) {
  const int64_t dim = problem.head_dim;
  const auto places = PlacesOf(problem, list);
  const auto element = [&](int64_t token, int64_t part, int64_t i) {
    const int64_t row =
        RowOf(problem, order, places[token].first, part, places[token].second);
    return Element(problem, problem.seed, row * dim + i);
  };
  const int64_t length = std::ssize(places);
  std::vector<double> logits(length);
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t token = 0; token < length; ++token) {
    for (int64_t i = 0; i < dim; ++i) {
      logits[token] += element(token, 0, i) *
                       Element(problem, problem.seed + 1, q_row * dim + i);
    }
    logits[token] /= std::sqrt(static_cast<double>(dim));
    max = std::max(max, logits[token]);
  }
  double sum = 0;
  std::vector<double> output(dim);
  for (int64_t token = 0; token < length; ++token) {
    const double weight = std::exp(logits[token] - max);
    sum += weight;
    for (int64_t i = 0; i < dim; ++i) {
      output[i] += weight * element(token, 1, i);
    }
  }
  for (double& x : output) x /= sum;
  return output;
}

struct DecodeCase {
  ElementType type;
  int32_t tail_tokens;
  double tolerance;
};

void ExpectDecodeIsAttention(const KernelProblem& problem, const char* name,
                             double tolerance,
                             KvTensorOrder order = KvTensorOrder::kPages) {
  const auto device = MakeKernelTestDevice();
  const auto on_device = DeviceProblem::Create(
      problem, {.rotated_bytes = 1, .model_dim = 64, .tensor_order = order},
      device.get());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const std::string kernels[] = {name};
  const absl::Status status =
      (*on_device)->ForEachCase(kernels, [](const KernelCase& c) {
        c.launch(0);
        return c.status;
      });
  ASSERT_TRUE(status.ok()) << status;
  const auto output = (*on_device)->ReadDecodeOutput();
  ASSERT_TRUE(output.ok()) << output.status();
  double error = 0;
  double norm = 0;
  for (int64_t list = 0; list < std::ssize(problem.lengths); ++list) {
    for (int64_t g = 0; g < problem.group_size; ++g) {
      const int64_t row = list * problem.group_size + g;
      const std::vector<double> want = Reference(problem, order, list, row);
      for (int64_t i = 0; i < problem.head_dim; ++i) {
        const double got = Widened((*output)[row * problem.head_dim + i],
                                   problem.element_type);
        error += std::pow(got - want[i], 2);
        norm += want[i] * want[i];
      }
    }
  }
  EXPECT_LE(std::sqrt(error / norm), tolerance) << name;
}

TEST_F(KernelStepCasesTest, DecodeIsAttentionOfTheProblem) {
  for (const DecodeCase& c : {DecodeCase{ElementType::kBFloat16, 0, 4e-3},
                              DecodeCase{ElementType::kBFloat16, 37, 4e-3},
                              DecodeCase{ElementType::kHalf, 0, 5e-4},
                              DecodeCase{ElementType::kHalf, 16, 5e-4}}) {
    SCOPED_TRACE(testing::Message()
                 << ElementName(c.type) << ", tail " << c.tail_tokens);
    const auto problem =
        MakeKernelProblem({.num_heads = 2,
                           .group_size = 3,
                           .mean_length = 100,
                           .kv_bytes = int64_t{6} * 100 * 512,
                           .tail_tokens = c.tail_tokens,
                           .element_type = c.type,
                           .distribution = LengthDistribution::kRagged});
    ASSERT_TRUE(problem.ok());
    for (const char* name : {"decode", "decode_invariant"}) {
      ExpectDecodeIsAttention(*problem, name, c.tolerance);
    }
  }
}

// The chunk's queries see the tail, too.
TEST_F(KernelStepCasesTest, AChunkSeesTheTailBeforeIt) {
  constexpr int32_t kTail = 37;
  KernelProblemShape shape{.num_heads = 2,
                           .group_size = 1,
                           .head_dim = 64,
                           .mean_length = 40,
                           .kv_bytes = int64_t{2} * 40 * 256};
  shape.tail_tokens = kTail;
  const auto problem = MakeKernelProblem(shape);
  ASSERT_TRUE(problem.ok());
  const auto device = MakeKernelTestDevice();
  const auto on_device = DeviceProblem::Create(
      *problem, {.rotated_bytes = 1, .model_dim = 64}, device.get());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  // Every slot of the pool's blocks.
  const int32_t num_queries =
      problem->num_pages / problem->num_heads * problem->page_size;
  const std::string kernels[] = {"chunk"};
  const absl::Status status =
      (*on_device)->ForEachCase(kernels, [&](const KernelCase& c) {
        EXPECT_EQ(c.flops, 4.0 * 64 * 2 * num_queries *
                               (40 + kTail + (num_queries + 1) / 2.0));
        return c.status;
      });
  EXPECT_TRUE(status.ok()) << status;
}

// A sink takes weight from all entries of a row alike.
TEST_F(KernelStepCasesTest, SinksTakeTheirShare) {
  const auto problem = MakeKernelProblem({.num_heads = 2,
                                          .group_size = 3,
                                          .head_dim = 64,
                                          .mean_length = 100,
                                          .kv_bytes = int64_t{6} * 100 * 256});
  ASSERT_TRUE(problem.ok());
  std::vector<std::vector<uint16_t>> outputs;
  for (const char* name : {"decode", "decode_sinks"}) {
    const auto device = MakeKernelTestDevice();
    const auto on_device = DeviceProblem::Create(
        *problem, {.rotated_bytes = 1, .model_dim = 64}, device.get());
    ASSERT_TRUE(on_device.ok()) << on_device.status();
    const std::string kernels[] = {name};
    ASSERT_TRUE((*on_device)
                    ->ForEachCase(kernels,
                                  [](const KernelCase& c) {
                                    c.launch(0);
                                    return c.status;
                                  })
                    .ok());
    outputs.push_back((*on_device)->ReadDecodeOutput().value());
  }
  const auto size = [&](const std::vector<uint16_t>& output, int64_t row) {
    double sum = 0;
    for (int64_t i = 0; i < 64; ++i) {
      sum += std::abs(Widened(output[row * 64 + i], problem->element_type));
    }
    return sum;
  };
  for (int64_t row = 0; row < std::ssize(problem->lengths) * 3; ++row) {
    EXPECT_LT(size(outputs[1], row), size(outputs[0], row)) << row;
    EXPECT_GT(size(outputs[1], row), 0.5 * size(outputs[0], row)) << row;
  }
}

TEST_F(KernelStepCasesTest, DecodeReadsTensorsInEveryOrder) {
  const auto problem =
      MakeKernelProblem({.num_heads = 2,
                         .group_size = 2,
                         .head_dim = 64,
                         .mean_length = 40,
                         .kv_bytes = int64_t{4} * 40 * 256,
                         .tail_tokens = 17,
                         .distribution = LengthDistribution::kRagged});
  ASSERT_TRUE(problem.ok());
  for (std::size_t i = 0; i < kTensorOrderNames.size(); ++i) {
    SCOPED_TRACE(kTensorOrderNames[i]);
    const KvTensorOrder order = TensorOrderNamed(kTensorOrderNames[i]);
    EXPECT_EQ(order, kAllKvTensorOrders[i]);
    ExpectDecodeIsAttention(*problem, "decode", 4e-3, order);
  }
}

}  // namespace
}  // namespace blockmgr
