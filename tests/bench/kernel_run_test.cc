// A whole run of the benchmark on tiny inputs, where there is a GPU.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_cases.h"
#include "bench/kernel_figures.h"
#include "bench/kernels.h"
#include "blockmgr/base/npy.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/gpu_test.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

class KernelRunTest : public GpuTest {
 protected:
  KernelRunTest() {
    options_.kv_mib = {2};
    options_.mean_length = 128;
    options_.prompt_length = 300;
    options_.num_samples = 3;
    if (TestCaseFactor() > 1) return;
    // Where a device is slow: one problem, without the kernels that compute
    // longest, which kernel_score_cases_test.cc runs.
    options_.kv_mib = {1};
    options_.mean_length = 512;
    options_.num_samples = 1;
    options_.head_dim = 64;
    options_.distributions = {"ragged"};
    options_.group_sizes = {1};
    for (const std::string& kernel : DeviceProblem::KernelNames()) {
      if (kernel != "chunk" && kernel != "value_norms" &&
          kernel != "expected_attention" && kernel != "keydiff_median") {
        options_.kernels.push_back(kernel);
      }
    }
  }

  std::size_t CountKernels() const {
    return options_.kernels.empty() ? DeviceProblem::KernelNames().size()
                                    : options_.kernels.size();
  }

  KernelBenchOptions options_;
};

TEST_F(KernelRunTest, ReportsEveryKernelOfEveryProblem) {
  nlohmann::ordered_json report;
  const absl::Status status = RunKernels(options_, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(report.at("not_run").empty()) << report.at("not_run");
  const auto& results = report.at("results");
  EXPECT_EQ(results.size(), options_.distributions.size() *
                                options_.group_sizes.size() * CountKernels());
  for (const auto& result : results) {
    EXPECT_GT(result.at("median_us").get<double>(), 0);
    EXPECT_EQ(result.at("num_samples"), options_.num_samples);
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
  EXPECT_EQ(report.at("results").size(), CountKernels());
  for (const auto& result : report.at("results")) {
    EXPECT_EQ(result.at("dtype"), "fp16");
    EXPECT_GT(result.at("tail_tokens").get<int64_t>(), 0);
  }
}

TEST_F(KernelRunTest, RunsLengthsOfAModelOnAnEnginesTensors) {
  const TempFolder folder;
  options_.lengths = {folder.Write(
      "kept.npy", EncodeNpyInts(std::vector<int64_t>{2, 1, 2},
                                std::vector<int32_t>{900, 130, 700, 290}))};
  options_.tensor_order = "nhd-pairs";
  options_.kernels = {"decode"};
  options_.group_sizes = {4};
  options_.kv_mib = {1};
  nlohmann::ordered_json report;
  const absl::Status status = RunKernels(options_, &report);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::string> lengths;
  for (const auto& result : report.at("results")) {
    EXPECT_EQ(result.at("tensor_order"), "nhd-pairs");
    if (result.at("kernel") == "decode") {
      lengths.push_back(result.at("distribution"));
    }
  }
  EXPECT_EQ(lengths, (std::vector<std::string>{"kept layer 0",
                                               "kept layer 0, uniform"}));
  EXPECT_EQ(report.at("results").size(), 6u);  // with the ceilings
  EXPECT_EQ(KernelFigures(report).size(), 2u);
}

TEST_F(KernelRunTest, HandsTheReportOverAsItGrows) {
  options_.distributions = {"uniform"};
  options_.group_sizes = {1, 2, 4};
  options_.kernels = {"append"};
  nlohmann::ordered_json report;
  std::vector<std::size_t> sizes;
  const ReportSink sink = [&sizes](const nlohmann::ordered_json& grown) {
    sizes.push_back(grown.at("results").size());
    return absl::OkStatus();
  };
  const absl::Status status = RunKernels(options_, &report, sink);
  ASSERT_TRUE(status.ok()) << status;
  // With the ceilings.
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 3, 6, 9}));
  // A second run goes on in the same report.
  options_.group_sizes = {1};
  ASSERT_TRUE(RunKernels(options_, &report, sink).ok());
  EXPECT_EQ(report.at("results").size(), 12u);
}

TEST_F(KernelRunTest, ARunEndsWhereItsReportCannotGo) {
  options_.kernels = {"append"};
  nlohmann::ordered_json report;
  const absl::Status status =
      RunKernels(options_, &report, [](const nlohmann::ordered_json&) {
        return absl::UnavailableError("no room");
      });
  EXPECT_EQ(status.message(), "no room");
  EXPECT_TRUE(report.at("results").empty());
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
