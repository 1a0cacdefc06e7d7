// The kernels' report: arithmetic of one result, and the table.
#include "bench/kernel_report.h"

#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace blockmgr {
namespace {

KernelProblem SmallProblem() {
  return {.num_sequences = 1,
          .num_heads = 1,
          .group_size = 4,
          .head_dim = 128,
          .page_size = 16,
          .num_pages = 2,
          .element_type = ElementType::kHalf,
          .seed = 1,
          .lengths = {10},
          .tail_lengths = {7},
          .page_ids = {0},
          .tail_blocks = {1}};
}

TEST(KernelReportTest, PercentilesAreSamples) {
  const std::vector<double> samples = {5, 1, 4, 2, 3};
  EXPECT_EQ(SamplePercentile(samples, 50), 3);
  EXPECT_EQ(SamplePercentile(samples, 10), 1);
  EXPECT_EQ(SamplePercentile(samples, 90), 5);
  EXPECT_EQ(SamplePercentile(samples, 20), 1);
  EXPECT_EQ(SamplePercentile({7}, 100), 7);
}

TEST(KernelReportTest, RatesFollowFromTheMedian) {
  KernelResult result{.kernel = "decode",
                      .distribution = "ragged",
                      .tensor_order = "nhd-pairs",
                      .ceiling = KernelCeiling::kRead,
                      .useful_bytes = 2e6,
                      .flops = 3e6,
                      .samples_us = {1, 2, 900}};
  const auto json = KernelResultJson(SmallProblem(), result, 2000);
  // 2 MB in 2 us is 1000 GB/s; 3 MFLOP are 1.5 TFLOP/s.
  EXPECT_DOUBLE_EQ(json.at("median_us").get<double>(), 2);
  EXPECT_DOUBLE_EQ(json.at("gb_per_s").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(json.at("tflop_per_s").get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(json.at("percent_of_ceiling").get<double>(), 50);
  EXPECT_EQ(json.at("tensor_order"), "nhd-pairs");
  EXPECT_EQ(json.at("ceiling"), "read");
  EXPECT_EQ(json.at("kv_bytes"), 17 * 512);
  EXPECT_EQ(json.at("dtype"), "fp16");
  EXPECT_EQ(json.at("tail_tokens"), 7);
  EXPECT_EQ(json.at("max_over_mean"), 1.0);
  result.ceiling = KernelCeiling::kNone;
  result.flops = 0;
  const auto other = KernelResultJson(SmallProblem(), result, 2000);
  EXPECT_TRUE(other.at("percent_of_ceiling").is_null());
  EXPECT_TRUE(other.at("tflop_per_s").is_null());
}

TEST(KernelReportTest, SaysWhatRanWhenAndOnWhat) {
  const auto report =
      KernelReportJson({.date = absl::FromUnixSeconds(1'700'000'000),
                        .device = "a device",
                        .sm_count = 132,
                        .l2_bytes = 50 << 20,
                        .cuda_driver = 13020,
                        .cuda_runtime = 12080,
                        .seed = 3});
  EXPECT_EQ(report.at("date"), "2023-11-14T22:13:20Z");
  EXPECT_EQ(report.at("cuda_driver"), "13.2");
  EXPECT_EQ(report.at("cuda_runtime"), "12.8");
  EXPECT_EQ(report.at("sm_count"), 132);
  EXPECT_EQ(report.at("seed"), 3);
  EXPECT_TRUE(report.at("results").is_array());
  EXPECT_TRUE(report.at("not_run").is_array());
  EXPECT_THAT(report.at("commit").get<std::string>(),
              testing::MatchesRegex("unknown|[0-9a-f]+|[0-9a-f]+-dirty"));
}

TEST(KernelReportTest, TheTableHasALinePerResult) {
  nlohmann::ordered_json report = KernelReportJson({.device = "a device"});
  const KernelResult result{.kernel = "compact",
                            .distribution = "uniform",
                            .tensor_order = "hnd-apart",
                            .ceiling = KernelCeiling::kCopy,
                            .useful_bytes = 4e6,
                            .flops = 0,
                            .samples_us = {8}};
  report["results"].push_back(KernelResultJson(SmallProblem(), result, 1000));
  report["results"].push_back(KernelResultJson(SmallProblem(), result, 1000));
  report["results"][1]["distribution"] = "longer than uniform";
  report["not_run"].push_back({{"distribution", "one-huge"},
                               {"group_size", 8},
                               {"kv_bytes", 3 << 20},
                               {"why", "no room"}});
  const std::string text = FormatKernelReport(report);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_TRUE(absl::StrContains(
      text, "not run: all kernels of one-huge G=8 3 MiB: no room"));
  EXPECT_TRUE(absl::StrContains(text, "a device"));
  EXPECT_TRUE(absl::StrContains(text, "compact"));
  // The names make room for each other.
  EXPECT_TRUE(
      absl::StrContains(text, absl::StrCat("compact          uniform",
                                           std::string(13, ' '), "hnd-apart")));
  EXPECT_TRUE(absl::StrContains(text, "longer than uniform hnd-apart"));
  EXPECT_TRUE(absl::StrContains(text, "50.0"));
  EXPECT_TRUE(absl::StrContains(text, "fp16"));
}

}  // namespace
}  // namespace blockmgr
