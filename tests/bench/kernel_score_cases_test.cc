// Every kernel of the benchmark on small problems, where there is a GPU.
#include <cstdint>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "bench/kernel_cases.h"
#include "tests/testing/gpu_test.h"

namespace blockmgr {
namespace {

class KernelScoreCasesTest : public GpuTest {};

TEST_F(KernelScoreCasesTest, EveryKernelRuns) {
  for (const LengthDistribution distribution :
       {LengthDistribution::kUniform, LengthDistribution::kOneHuge}) {
    const auto problem = MakeKernelProblem({.mean_length = 200,
                                            .kv_bytes = 4 << 20,
                                            .distribution = distribution});
    ASSERT_TRUE(problem.ok());
    const auto device = DeviceProblem::Create(*problem, 16 << 20);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_GE((*device)->num_copies(), 4);
    for (const KernelCase& c : (*device)->cases()) {
      for (int32_t copy = 0; copy < (*device)->num_copies(); ++copy) {
        EXPECT_EQ(c.launch(copy, nullptr), cudaSuccess) << c.kernel;
      }
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << c.kernel;
    }
    const auto error = (*device)->ReadErrorWord();
    ASSERT_TRUE(error.ok()) << error.status();
    EXPECT_EQ(*error, 0u);
  }
}

}  // namespace
}  // namespace blockmgr
