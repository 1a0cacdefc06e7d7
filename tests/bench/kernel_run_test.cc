// A whole run of the benchmark on tiny inputs, where there is a GPU.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/kernels.h"
#include "tests/testing/gpu_test.h"

namespace blockmgr {
namespace {

class KernelRunTest : public GpuTest {
 protected:
  KernelRunTest() {
    options_.kv_mib = {2};
    options_.mean_length = 128;
    options_.prompt_length = 300;
    options_.num_samples = 3;
  }

  KernelBenchOptions options_;
};

TEST_F(KernelRunTest, ReportsEveryKernelOfEveryProblem) {
  const auto report = RunKernels(options_);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto& results = report->at("results");
  // Three distributions and the prompt, each with three group sizes.
  EXPECT_EQ(results.size() % 12, 0u);
  for (const auto& result : results) {
    EXPECT_GT(result.at("median_us").get<double>(), 0);
    EXPECT_EQ(result.at("num_samples"), 3);
  }
}

TEST_F(KernelRunTest, RefusesKernelsThatDoNotExist) {
  options_.kernels = {"decoed"};
  options_.distributions = {"uniform"};
  options_.group_sizes = {1};
  EXPECT_EQ(RunKernels(options_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockmgr
