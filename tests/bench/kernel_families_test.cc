// Cases of the benchmark one after the other on a device, whatever each takes.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/kernel_cases.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class KernelFamiliesTest : public DeviceTest {};

// Nothing of a case is left for the next, and none is made that nobody wants.
TEST_F(KernelFamiliesTest, CasesTakeTurnsWithTheirMemory) {
  const auto problem =
      MakeKernelProblem({.num_heads = 2,
                         .group_size = 2,
                         .head_dim = 64,
                         .mean_length = 100,
                         .kv_bytes = int64_t{3} * 2 * 100 * 256});
  ASSERT_TRUE(problem.ok());
  const auto device = MakeKernelTestDevice();
  const auto most_bytes = [&](const std::vector<std::string>& kernels) {
    const auto on_device =
        DeviceProblem::Create(*problem, {.model_dim = 64}, device.get());
    EXPECT_TRUE(on_device.ok()) << on_device.status();
    std::vector<std::string> names;
    const absl::Status status =
        (*on_device)->ForEachCase(kernels, [&](const KernelCase& c) {
          names.push_back(c.kernel);
          return c.status;
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(names, kernels);
    return (*on_device)->most_bytes();
  };
  int64_t most = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::string& name : DeviceProblem::KernelNames()) {
    const int64_t bytes = most_bytes({name});
    most = std::max(most, bytes);
    least = std::min(least, bytes);
  }
  EXPECT_EQ(most_bytes(DeviceProblem::KernelNames()), most);
  EXPECT_LT(least, most);
}

// The pools fit, and what one case needs beside them does not.
TEST_F(KernelFamiliesTest, ACaseThatDoesNotFitLeavesTheOthers) {
  const auto problem = MakeKernelProblem(
      {.num_heads = 1, .head_dim = 64, .mean_length = 64, .kv_bytes = 1 << 15});
  ASSERT_TRUE(problem.ok());
  const auto device = MakeKernelTestDevice();
  // A projection of a TiB.
  const auto on_device = DeviceProblem::Create(
      *problem, {.model_dim = std::numeric_limits<int32_t>::max()},
      device.get());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const std::vector<std::string> kernels = {"value_norms", "select_uniform"};
  std::vector<absl::StatusCode> codes;
  const absl::Status status =
      (*on_device)->ForEachCase(kernels, [&](const KernelCase& c) {
        codes.push_back(c.status.code());
        if (c.status.ok()) c.launch(0);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(codes, (std::vector{absl::StatusCode::kResourceExhausted,
                                absl::StatusCode::kOk}));
  EXPECT_EQ((*on_device)->ReadErrorWord().value_or(1), 0u);
}

}  // namespace
}  // namespace blockmgr
