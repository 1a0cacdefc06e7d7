#include "bench/report.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/compare.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

// Two requests, one of which failed.
struct Example {
  BenchOptions options;
  BenchPlan plan;
  RunResult result;

  Example() {
    plan.percentiles = {50, 99, 99.9};
    plan.percentile_metrics = options.percentile_metrics;
    plan.metadata = {{"gpu", "none"}};
    plan.workload.requests.resize(2);
    RequestRecord good;
    good.sent_s = 0.25;
    good.tokens_s = {1.0, 1.5, 2.0};
    good.prompt_tokens = 10;
    good.completed = true;
    RequestRecord bad;
    bad.sent_s = 0.5;
    bad.prompt_tokens = 20;
    bad.failure = absl::UnavailableError("no engine");
    result.records = {good, bad};
    result.duration_s = 2;
    result.endpoint_type = "grpc";
    result.model_id = "tiny / cpu";
    result.counters = SystemCounters{.mean_requests_in_flight = 1.5};
    result.counters->scheduler.num_prompt_tokens = 100;
    result.counters->scheduler.num_cached_tokens = 25;
    result.peaks = SystemPeaks{.max_used_blocks = 7};
    result.prefix_cache = "reset";
    result.config = {{"num_blocks", 64}, {"watermark", 0.01}};
    result.choices = {{"admission", "vllm"}};
  }

  Json Build() const {
    return BuildReport(options, plan, result, "20240102-030405");
  }
};

TEST(BuildReportTest, HasTheKeysOfVllmAndOurs) {
  const Json report = Example().Build();
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "mean_requests_in_flight",
                          "max_requests_in_flight",
                          "preemptions",
                          "draft_tokens",
                          "accepted_tokens",
                          "draft_acceptance_rate",
                          "evictions",
                          "squeezes",
                          "evicted_bytes",
                          "evicted_entries",
                          "cached_tokens",
                          "prefix_hit_rate",
                          "swap_ins",
                          "swapped_in_tokens",
                          "recomputed_tokens",
                          "max_used_blocks",
                          "kept_entries_min",
                          "kept_entries_median",
                          "kept_entries_max",
                          "steps",
                          "achieved_request_rate",
                          "client_lag_ms",
                          "eviction",
                          "eviction_mode",
                          "compress_every",
                          "keep_ratio",
                          "keep_tokens",
                          "window_keep_ratio",
                          "failures",
                          "good_requests",
                          "prefix_cache",
                          "notes",
                          "scale_trace",
                          "config",
                          "metadata"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* kind : {"mean", "median", "std", "p50", "p99", "p99.9"}) {
      const std::string key = std::string(kind) + "_" + metric + "_ms";
      EXPECT_TRUE(report.contains(key)) << key;
    }
  }
}

TEST(BuildReportTest, ValuesAreThoseOfTheRun) {
  const Json report = Example().Build();
  EXPECT_EQ(report["completed"], 1);
  EXPECT_EQ(report["failed"], 1);
  EXPECT_EQ(report["request_rate"], "inf");
  EXPECT_EQ(report["total_output_tokens"], 3);
  EXPECT_EQ(report["output_throughput"], 1.5);
  EXPECT_EQ(report["mean_ttft_ms"], 1000.0);
  EXPECT_EQ(report["p50_tpot_ms"], 500.0);
  EXPECT_EQ(report["prefix_hit_rate"], 0.25);
  EXPECT_EQ(report["achieved_request_rate"], 4.0);
  EXPECT_EQ(report["client_lag_ms"]["max"], 500.0);
  EXPECT_EQ(report["failures"]["UNAVAILABLE"]["example"], "no engine");
  EXPECT_EQ(report["metadata"]["gpu"], "none");
  EXPECT_EQ(report["config"]["num_blocks"].dump(), "64");
  EXPECT_EQ(report["config"]["watermark"], 0.01);
  EXPECT_EQ(report["config"]["admission"], "vllm");
  EXPECT_TRUE(report["eviction"].is_null());
  EXPECT_TRUE(report["max_concurrency"].is_null());
}

// Nothing was measured, which is better than no latency at all.
TEST(BuildReportTest, LatenciesOfNothingAreNull) {
  Example example;
  for (RequestRecord& record : example.result.records) {
    record = RequestRecord();
    record.failure = absl::UnavailableError("no engine");
  }
  const Json report = example.Build();
  for (const char* key :
       {"mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "p99_e2el_ms"}) {
    EXPECT_TRUE(report.at(key).is_null()) << key;
  }
  EXPECT_TRUE(report["client_lag_ms"]["max"].is_null());
  EXPECT_THAT(FormatReport(report), HasSubstr("Mean TTFT (ms):                 "
                                              "                       -\n"));
}

TEST(BuildReportTest, TellsGoalAndVocabulary) {
  Example example;
  example.options.vocab_size = 300;
  EXPECT_EQ(example.Build()["vocab_size"], 300);
  EXPECT_TRUE(example.Build()["goodput"].is_null());
  example.options.goodput = {"ttft:200", "tpot:50"};
  example.plan.goodput.ttft_ms = 200;
  EXPECT_EQ(example.Build()["goodput"], "ttft:200 tpot:50");
}

TEST(BuildReportTest, NamesEvictionRateAndTrace) {
  Example example;
  ASSERT_OK_AND_ASSIGN(example.plan.eviction,
                       ResolveEviction({.keep_ratio = "0.2"}));
  example.options.dataset.name = "mooncake";
  example.options.dataset.path = "trace.jsonl";
  example.options.arrivals.spread_ticks = true;
  example.plan.workload.tick_s = 3;
  const Json replay = example.Build();
  EXPECT_EQ(replay["request_rate"], "trace");
  EXPECT_EQ(replay["spread_ticks"], true);
  EXPECT_EQ(replay["tick_seconds"], 3.0);
  EXPECT_EQ(replay["keep_ratio"], 0.2);
  EXPECT_THAT(replay["eviction"].get<std::string>(), HasSubstr("adakv"));
  example.options.arrivals.request_rate = 2.0;
  EXPECT_EQ(example.Build()["request_rate"], 2.0);
}

TEST(BuildReportTest, LeavesOutMetricsNobodyAskedFor) {
  Example example;
  example.plan.percentile_metrics = {"ttft"};
  const Json report = example.Build();
  EXPECT_TRUE(report.contains("mean_ttft_ms"));
  EXPECT_FALSE(report.contains("mean_tpot_ms"));
  EXPECT_THAT(FormatReport(report), Not(HasSubstr("Output Token (excl.")));
}

TEST(BuildReportTest, DetailsAreOneValuePerRequest) {
  Example example;
  example.options.save_detailed = true;
  const Json report = example.Build();
  EXPECT_EQ(report["input_lens"], Json::array({10, 20}));
  EXPECT_EQ(report["output_lens"], Json::array({3, 0}));
  EXPECT_EQ(report["ttfts"], Json::array({1.0, 0.0}));
  EXPECT_EQ(report["itls"],
            Json::array({Json::array({0.5, 0.5}), Json::array()}));
  EXPECT_EQ(report["latencies"], Json::array({2.0, 0.0}));
  EXPECT_EQ(report["start_times"], Json::array({0.0, 0.0}));
  EXPECT_EQ(report["errors"][0], "");
  EXPECT_EQ(report["errors"][1], "UNAVAILABLE: no engine");
  EXPECT_FALSE(Example().Build().contains("ttfts"));
}

TEST(BuildReportTest, WhatIsNotKnownIsNullAndNoted) {
  Example example;
  example.result.counters.reset();
  example.result.peaks.reset();
  example.result.notes = {"the daemon was started again"};
  const Json report = example.Build();
  const Json known = Example().Build();
  for (const char* key :
       {"mean_requests_in_flight", "steps", "prefix_hit_rate",
        "max_requests_in_flight", "max_used_blocks", "kept_entries_max"}) {
    EXPECT_TRUE(report.at(key).is_null()) << key;
    EXPECT_TRUE(known.at(key).is_number()) << key;
  }
  EXPECT_EQ(report["notes"], Json::array({"the daemon was started again"}));
  EXPECT_EQ(report["prefix_cache"], "reset");
  const std::string text = FormatReport(report);
  EXPECT_THAT(text, HasSubstr("note: the daemon was started again\n"));
  EXPECT_THAT(text, Not(HasSubstr("Max used blocks:")));
  EXPECT_THAT(FormatReport(known), HasSubstr("Max used blocks:"));
}

TEST(DescribeFailuresTest, CountsThemByKind) {
  Example example;
  EXPECT_EQ(DescribeFailures(example.Build()),
            "1 of 2 requests failed: 1 UNAVAILABLE, such as: no engine");
  RequestRecord refused;
  refused.failure = absl::ResourceExhaustedError("queue full");
  example.result.records.push_back(refused);
  example.plan.workload.requests.resize(3);
  EXPECT_EQ(
      DescribeFailures(example.Build()),
      "2 of 3 requests failed: 1 RESOURCE_EXHAUSTED, such as: queue full; "
      "1 UNAVAILABLE, such as: no engine");
  example.result.records.resize(1);
  EXPECT_EQ(DescribeFailures(example.Build()), "");
  // Of others' reports, which may lack the reasons.
  EXPECT_EQ(DescribeFailures(Json{{"completed", 1}}), "");
  EXPECT_EQ(DescribeFailures(Json{{"completed", 1}, {"failed", 2}}),
            "2 of 3 requests failed");
}

TEST(FormatReportTest, ShowsNumbersAndFailures) {
  const std::string text = FormatReport(Example().Build());
  EXPECT_THAT(text, HasSubstr("Successful requests:"));
  EXPECT_THAT(text, HasSubstr("such as: no engine"));
  EXPECT_THAT(text, HasSubstr("Mean TTFT (ms):"));
  EXPECT_THAT(text, HasSubstr("P99.9 E2EL (ms):"));
  EXPECT_THAT(text, HasSubstr("Mean requests in flight:"));
  EXPECT_THAT(text, HasSubstr("Cached tokens:"));
  EXPECT_THAT(text, Not(HasSubstr("Preemptions:")));  // there were none
}

TEST(DefaultResultFilenameTest, FollowsVllmAndIsSafe) {
  Example example;
  EXPECT_EQ(DefaultResultFilename(example.Build(), "T"),
            "blockmgr-infqps-tiny___cpu-T.json");
  example.options.label = "../a b";
  example.options.arrivals.request_rate = 2.5;
  example.plan.max_concurrency = 8;
  EXPECT_EQ(DefaultResultFilename(example.Build(), "T"),
            ".._a_b-2.5qps-concurrency8-tiny___cpu-T.json");
}

class ReportFileTest : public ::testing::Test {
 protected:
  const TempFolder folder_;
};

TEST_F(ReportFileTest, WritesAndReadsBack) {
  const Json report = Example().Build();
  const std::string path = folder_.File("run.json");
  ASSERT_OK(WriteReport(path, report));
  ASSERT_OK_AND_ASSIGN(const Json again, ReadReport(path));
  EXPECT_EQ(again, report);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST_F(ReportFileTest, ALabelInAnyEncodingIsNoLoss) {
  Example example;
  example.options.label = "x\xff";
  const Json report = example.Build();
  const std::string path = folder_.File("run.json");
  ASSERT_OK(WriteReport(path, report));
  ASSERT_OK_AND_ASSIGN(const Json again, ReadReport(path));
  EXPECT_EQ(again["label"], "x\uFFFD");
  EXPECT_EQ(again["completed"], report["completed"]);
}

// Runs that end in one second have the same generated name.
TEST_F(ReportFileTest, AGeneratedNameIsNewAndAnExplicitOneIsNot) {
  Example example;
  example.options.save_result = true;
  example.options.result_dir = folder_.path();
  const std::string first = folder_.File("blockmgr-infqps-tiny___cpu-T.json");
  const std::string second =
      folder_.File("blockmgr-infqps-tiny___cpu-T-2.json");
  const auto publish = [&](const char* label) {
    Json report = example.Build();
    report["metadata"] = label;
    ::testing::internal::CaptureStdout();
    EXPECT_OK(PublishReport(example.options, report, "T"));
    EXPECT_NE(::testing::internal::GetCapturedStdout(), "");
  };
  const auto label_in = [](const std::string& path) {
    const absl::StatusOr<Json> report = ReadReport(path);
    return report.ok() ? report->value("metadata", "") : "no report";
  };
  publish("a");
  publish("b");
  EXPECT_EQ(label_in(first), "a");
  EXPECT_EQ(label_in(second), "b");
  example.options.result_filename = "blockmgr-infqps-tiny___cpu-T.json";
  publish("c");
  EXPECT_EQ(label_in(first), "c");
}

// What the run has cost is saved, whatever becomes of the terminal.
TEST_F(ReportFileTest, SavesBeforeItPrints) {
  Example example;
  example.options.save_result = true;
  example.options.result_dir = folder_.path();
  example.options.result_filename = "run.json";
  const auto publish_into_full = [&] {
    EXPECT_NE(std::freopen("/dev/full", "w", stdout), nullptr);
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    const bool ok = PublishReport(example.options, example.Build(), "T").ok();
    std::_Exit(ok && std::ferror(stdout) != 0 ? 0 : 1);
  };
  EXPECT_EXIT(publish_into_full(), ::testing::ExitedWithCode(0), "saved ");
  EXPECT_OK(ReadReport(folder_.File("run.json")));
}

TEST_F(ReportFileTest, AReportThatCannotBeWrittenLeavesNoFile) {
  Example example;
  example.options.save_result = true;
  example.options.result_dir = folder_.path();
  const auto publish_without_room = [&] {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    std::signal(SIGXFSZ, SIG_IGN);
    std::_Exit(PublishReport(example.options, example.Build(), "T").ok() ? 1
                                                                         : 0);
  };
  EXPECT_EXIT(publish_without_room(), ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(ReportFileTest, ReadsNoFolder) {
  EXPECT_THAT(ReadReport(folder_.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("a folder")));
}

TEST_F(ReportFileTest, NamesTheFileThatCannotBeWritten) {
  EXPECT_THAT(
      WriteReport(folder_.File(""), Json::object()),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(folder_.path())));
}

TEST_F(ReportFileTest, RefusesWhatIsNoReport) {
  for (const char* text :
       {"[1, 2]", R"({"completed": "2"})", R"({"completed": 2, "failed": "2"})",
        R"({"completed": 2, "failed": 1, "failures": 7})",
        R"({"completed": 2, "failed": 1, "failures": {"INTERNAL": {}}})"}) {
    EXPECT_THAT(ReadReport(folder_.Write("other.json", text)),
                IsInvalid("other.json"))
        << text;
  }
  EXPECT_THAT(ReadReport(folder_.File("missing.json")),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace blockmgr
