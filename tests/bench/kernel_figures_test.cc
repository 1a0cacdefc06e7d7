// Promises of kernels, and reports that keep them or do not.
#include "bench/kernel_figures.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

Json Result(const std::string& kernel, const std::string& distribution,
            int num_sequences, int64_t kv_mib, double percent, double median_us,
            double tflop_per_s) {
  return {{"kernel", kernel},
          {"distribution", distribution},
          {"group_size", 4},
          {"kv_bytes", kv_mib << 20},
          {"num_sequences", num_sequences},
          {"gb_per_s", 20 * percent},
          {"percent_of_ceiling", percent},
          {"median_us", median_us},
          {"tflop_per_s", tflop_per_s}};
}

// What meets every promise, just so.
Json Report() {
  Json results = Json::array();
  for (const char* distribution : {"uniform", "ragged"}) {
    for (const int64_t kv_mib : {256, 1024}) {
      results.push_back(Result("decode", distribution, 9, kv_mib, 85, 1, 1));
      results.push_back(Result("compact", distribution, 9, kv_mib, 80, 1, 1));
    }
  }
  results.push_back(Result("append", "uniform", 9, 256, 80, 1, 1));
  results.push_back(Result("copy_blocks", "uniform", 9, 256, 80, 1, 1));
  for (const auto& [kernel, median_us] : {std::pair("select_uniform", 30.0),
                                          {"select_adakv", 30.0},
                                          {"snapkv", 100.0},
                                          {"keydiff", 70.0}}) {
    results.push_back(Result(kernel, "prompt", 1, 128, 1, median_us, 1));
  }
  results.push_back(Result("value_norms", "prompt", 1, 128, 1, 1, 350));
  for (const char* kernel : {"evict_snapkv", "evict_keydiff"}) {
    results.push_back(Result(kernel, "prompt", 32, 4096, 1, 6000, 1));
  }
  return {{"results", results}};
}

Json* Find(Json* report, const std::string& kernel,
           const std::string& distribution) {
  for (Json& result : report->at("results")) {
    if (result.at("kernel") == kernel &&
        result.at("distribution") == distribution) {
      return &result;
    }
  }
  return nullptr;
}

// Names of what a report misses.
std::vector<std::string> Missed(const Json& report) {
  std::vector<std::string> names;
  for (const KernelFigure& figure : KernelFigures(report)) {
    if (!figure.met()) names.push_back(figure.name);
  }
  return names;
}

TEST(KernelFiguresTest, ExactlyWhatIsPromisedIsMet) {
  const std::vector<KernelFigure> figures = KernelFigures(Report());
  EXPECT_EQ(figures.size(), 14u);
  for (const KernelFigure& figure : figures) {
    ASSERT_TRUE(figure.worst.has_value()) << figure.name;
    if (figure.unit != "of GB/s") {
      EXPECT_EQ(*figure.worst, figure.limit) << figure.name;
    }
  }
  EXPECT_TRUE(CheckKernelFigures(figures).ok());
}

TEST(KernelFiguresTest, TheWorstResultCounts) {
  for (const auto& [kernel, field, value] :
       {std::tuple("decode", "percent_of_ceiling", 84.9),
        {"append", "percent_of_ceiling", 79.9}}) {
    Json report = Report();
    Find(&report, kernel, "uniform")->at(field) = value;
    EXPECT_EQ(Missed(report),
              std::vector<std::string>{std::string(kernel) + ", uniform"});
  }
  for (const auto& [kernel, field, value] :
       {std::tuple("snapkv", "median_us", 100.1),
        {"select_adakv", "median_us", 30.1},
        {"value_norms", "tflop_per_s", 349.9},
        {"evict_keydiff", "median_us", 6000.1}}) {
    Json report = Report();
    Find(&report, kernel, "prompt")->at(field) = value;
    EXPECT_EQ(Missed(report),
              std::vector<std::string>{std::string(kernel) + ", prompt"});
  }
}

TEST(KernelFiguresTest, RaggedIsHeldAgainstUniformOfTheSameSize) {
  Json report = Report();
  // As fast against the ceiling, but not against the other.
  Find(&report, "decode", "ragged")->at("gb_per_s") = 20 * 85 * 0.949;
  EXPECT_EQ(Missed(report),
            std::vector<std::string>{"decode, ragged / uniform"});
  Find(&report, "decode", "uniform")->at("gb_per_s") = 20 * 85 * 0.99;
  EXPECT_TRUE(Missed(report).empty());
  // Another group size has nobody to be held against.
  Find(&report, "decode", "ragged")->at("gb_per_s") = 1;
  Find(&report, "decode", "ragged")->at("group_size") = 8;
  EXPECT_TRUE(Missed(report).empty());
}

TEST(KernelFiguresTest, SmallPoolsAndOtherPromptsDoNotCount) {
  Json report = Report();
  Json& results = report.at("results");
  results.push_back(Result("decode", "uniform", 9, 64, 1, 1, 1));
  results.push_back(Result("keydiff", "prompt", 2, 256, 1, 1000, 1));
  results.push_back(Result("evict_snapkv", "prompt", 80, 10240, 1, 9000, 1));
  EXPECT_TRUE(Missed(report).empty());
}

TEST(KernelFiguresTest, WhatWasNotMeasuredIsMissedAndNamed) {
  Json report = Report();
  Json& results = report.at("results");
  results.erase(std::remove_if(results.begin(), results.end(),
                               [](const Json& result) {
                                 return result.at("kernel") == "keydiff";
                               }),
                results.end());
  const std::vector<KernelFigure> figures = KernelFigures(report);
  EXPECT_EQ(CheckKernelFigures(figures),
            absl::FailedPreconditionError(
                "1 of 14 figures are missed: keydiff, prompt: expected at most "
                "70 us, got not measured"));
  EXPECT_NE(FormatKernelFigures(figures).find("not measured us"),
            std::string::npos)
      << FormatKernelFigures(figures);
  for (const Json& figure : KernelFiguresToJson(figures)) {
    const bool is_it = figure.at("name") == "keydiff, prompt";
    EXPECT_EQ(figure.at("worst").is_null(), is_it);
    EXPECT_EQ(figure.at("met").get<bool>(), !is_it);
  }
}

// Decode of one file's lengths and of even lengths, in two sizes.
Json LengthsReport(double percent, double even_percent) {
  Json results = Json::array();
  for (const int64_t kv_mib : {256, 1024}) {
    results.push_back(Result("decode", "a layer 3", 9, kv_mib, percent, 1, 1));
    results.push_back(
        Result("decode", "a layer 3, uniform", 9, kv_mib, even_percent, 1, 1));
    // Only decode has limits.
    results.push_back(Result("compact", "a layer 3", 9, kv_mib, 1, 1, 1));
  }
  return {{"results", results}, {"not_run", Json::array()}};
}

TEST(KernelFiguresTest, LengthsOfModelsHaveRowsOfTheirOwn) {
  Json report = LengthsReport(85, 89);
  const std::vector<KernelFigure> figures = KernelFigures(report);
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].name, "decode, a layer 3");
  EXPECT_EQ(figures[0].worst, 85);
  EXPECT_EQ(figures[0].limit, 85);
  EXPECT_EQ(figures[1].name, "decode, a layer 3 / uniform");
  EXPECT_DOUBLE_EQ(*figures[1].worst, 85.0 / 89.0);
  EXPECT_EQ(figures[1].limit, 0.95);
  EXPECT_TRUE(Missed(report).empty());

  EXPECT_EQ(Missed(LengthsReport(85, 90)),
            std::vector<std::string>{"decode, a layer 3 / uniform"});
  EXPECT_EQ(Missed(LengthsReport(84.9, 85)),
            std::vector<std::string>{"decode, a layer 3"});
  // The worse of the two sizes counts.
  report.at("results").at(0).at("gb_per_s") = 20 * 89 * 0.949;
  EXPECT_EQ(Missed(report),
            std::vector<std::string>{"decode, a layer 3 / uniform"});
}

TEST(KernelFiguresTest, LengthsThatWereNotRunAreMissed) {
  Json report = LengthsReport(90, 90);
  for (const char* name : {"b layer 0", "b layer 0, uniform"}) {
    report.at("not_run").push_back({{"distribution", name}});
  }
  EXPECT_EQ(Missed(report),
            (std::vector<std::string>{"decode, b layer 0",
                                      "decode, b layer 0 / uniform"}));
}

TEST(KernelFiguresTest, LongNamesKeepTheColumns) {
  const std::string name(70, 'n');
  const std::string text = FormatKernelFigures(
      {{.name = name, .unit = "us", .limit = 1, .worst = 2},
       {.name = "short", .unit = "us", .limit = 1, .worst = 2}});
  const std::string worst = "         2.00 us";
  EXPECT_NE(text.find(name + worst), std::string::npos) << text;
  EXPECT_NE(text.find("short" + std::string(65, ' ') + worst),
            std::string::npos)
      << text;
}

TEST(KernelFiguresTest, LengthsAreAllThatTheirCheckRuns) {
  KernelBenchOptions options;
  options.lengths = {"a.npy", "b.npy"};
  options.lengths_layers = {7};
  options.group_sizes = {2};
  options.head_dim = 256;
  options.tensor_order = "nhd-pairs";
  const std::vector<KernelBenchOptions> runs = FigureRuns(options);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].lengths, options.lengths);
  EXPECT_EQ(runs[0].lengths_layers, options.lengths_layers);
  EXPECT_EQ(runs[0].group_sizes, options.group_sizes);
  EXPECT_EQ(runs[0].head_dim, 256);
  EXPECT_EQ(runs[0].tensor_order, "nhd-pairs");
  EXPECT_EQ(runs[0].kernels.front(), "decode");
  for (const int64_t mib : runs[0].kv_mib) EXPECT_GE(mib, 256);
}

// Every promise has a result in what a check runs.
TEST(KernelFiguresTest, RunsHaveAllFigures) {
  KernelBenchOptions options;
  options.device = 3;
  options.dtype = "fp16";
  options.seed = 7;
  options.num_samples = 5;
  options.tensor_order = "hnd";
  Json report = {{"results", Json::array()}};
  for (const KernelBenchOptions& run : FigureRuns(options)) {
    EXPECT_EQ(run.device, 3);
    EXPECT_EQ(run.seed, 7u);
    EXPECT_EQ(run.num_samples, 5);
    EXPECT_EQ(run.tensor_order, "hnd");
    std::vector<std::string> names;
    const auto problems = KernelProblems(run, &names);
    ASSERT_TRUE(problems.ok()) << problems.status();
    for (size_t i = 0; i < names.size(); ++i) {
      const KernelProblem& problem = (*problems)[i];
      EXPECT_EQ(problem.element_type, ElementType::kHalf);
      for (const std::string& kernel : run.kernels) {
        Json result =
            Result(kernel, names[i], problem.num_sequences, 0, 100, 1, 1000);
        result.at("kv_bytes") = problem.kv_bytes();
        result.at("group_size") = problem.group_size;
        report.at("results").push_back(std::move(result));
      }
    }
  }
  EXPECT_TRUE(Missed(report).empty());
}

}  // namespace
}  // namespace blockmgr
