// A whole run of the benchmark on tiny inputs, where there is a GPU.
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_cases.h"
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
  nlohmann::ordered_json report;
  const absl::Status status = RunKernels(options_, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(report.at("not_run").empty()) << report.at("not_run");
  const auto& results = report.at("results");
  // Three distributions and the prompt, each with three group sizes.
  EXPECT_EQ(results.size(), 12 * DeviceProblem::KernelNames().size());
  for (const auto& result : results) {
    EXPECT_GT(result.at("median_us").get<double>(), 0);
    EXPECT_EQ(result.at("num_samples"), 3);
  }
}

TEST_F(KernelRunTest, RunsHalfPrecisionWithTails) {
  options_.distributions = {"ragged"};
  options_.group_sizes = {4};
  options_.dtype = "fp16";
  options_.tail_tokens = 100;
  nlohmann::ordered_json report;
  const absl::Status status = RunKernels(options_, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(report.at("results").size(), DeviceProblem::KernelNames().size());
  for (const auto& result : report.at("results")) {
    EXPECT_EQ(result.at("dtype"), "fp16");
    EXPECT_GT(result.at("tail_tokens").get<int64_t>(), 0);
  }
}

TEST_F(KernelRunTest, RefusesKernelsThatDoNotExist) {
  options_.kernels = {"decoed"};
  options_.distributions = {"uniform"};
  options_.group_sizes = {1};
  nlohmann::ordered_json report;
  EXPECT_EQ(RunKernels(options_, &report).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockmgr
