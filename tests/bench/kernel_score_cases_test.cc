// Every kernel of the benchmark on small problems.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/kernel_cases.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

class KernelScoreCasesTest : public DeviceTest {};

struct SmallProblem {
  LengthDistribution distribution;
  ElementType type;
  int32_t tail_tokens;
  KvTensorOrder order;
};

TEST_F(KernelScoreCasesTest, EveryKernelRunsOnEveryCopy) {
  using enum LengthDistribution;
  using enum ElementType;
  // The last one's tail is longer than its regions: where these are a page, an
  // eviction keeps rows on the tail's pages, too.
  for (const SmallProblem& small :
       {SmallProblem{kUniform, kBFloat16, 0, KvTensorOrder::kPages},
        SmallProblem{kRagged, kHalf, 0, KvTensorOrder::kNhdApart},
        SmallProblem{kOneHuge, kBFloat16, 0, KvTensorOrder::kHnd},
        SmallProblem{kRagged, kBFloat16, 150, KvTensorOrder::kNhdPairs}}) {
    // The two in between are left to nightly tests.
    if (kBrief && (small.type == kHalf || small.distribution == kOneHuge)) {
      continue;
    }
    const int32_t length = 40 * TestLengthFactor();
    const auto problem =
        MakeKernelProblem({.num_heads = 2,
                           .group_size = 2,
                           .head_dim = 64,
                           .page_size = 32,
                           .mean_length = length,
                           .kv_bytes = int64_t{3} * 2 * length * 256,
                           .tail_tokens = small.tail_tokens,
                           .element_type = small.type,
                           .distribution = small.distribution});
    ASSERT_TRUE(problem.ok());
    SCOPED_TRACE(testing::Message()
                 << ElementName(small.type) << ", tail " << small.tail_tokens);
    const auto device = MakeKernelTestDevice();
    const auto on_device =
        DeviceProblem::Create(*problem,
                              {.rotated_bytes = 2 * problem->kv_bytes(),
                               .model_dim = 72,
                               .tensor_order = small.order},
                              device.get());
    ASSERT_TRUE(on_device.ok()) << on_device.status();
    EXPECT_EQ((*on_device)->num_copies(), 2);
    std::vector<std::string> names;
    const auto run = [&](const KernelCase& c) {
      names.push_back(c.kernel);
      EXPECT_TRUE(c.status.ok()) << c.kernel << ": " << c.status;
      EXPECT_GT(c.useful_bytes + c.flops, 0) << c.kernel;
      for (int32_t copy = 0; copy < 2; ++copy) c.launch(copy);
      const auto error = (*on_device)->ReadErrorWord();
      EXPECT_EQ(error.value_or(1), 0u) << c.kernel;
      return error.status();
    };
    const absl::Status status = (*on_device)->ForEachCase({}, run);
    ASSERT_TRUE(status.ok()) << names.back() << ": " << status;
    EXPECT_EQ(names, DeviceProblem::KernelNames());
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 32u);
  }
}

TEST_F(KernelScoreCasesTest, ADeviceThatIsTooSmallIsAnError) {
  auto problem = MakeKernelProblem({.num_heads = 1,
                                    .head_dim = 256,
                                    .page_size = 32,
                                    .mean_length = 1000,
                                    .kv_bytes = int64_t{1} << 20});
  ASSERT_TRUE(problem.ok());
  // 256 GiB of pages: more than any device has.
  problem->num_pages = 1 << 23;
  const auto device = MakeKernelTestDevice();
  EXPECT_EQ(DeviceProblem::Create(*problem, {}, device.get()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->status().ok());
}

}  // namespace
}  // namespace blockmgr
