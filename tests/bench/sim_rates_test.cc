#include "bench/sim_rates.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/bench/small_sim.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

BenchOptions Goal(const std::string& goodput) {
  BenchOptions bench;
  bench.dataset.num_prompts = 150;
  bench.dataset.random = {.input_tokens = 600, .output_tokens = 40};
  bench.goodput = {goodput};
  return bench;
}

// One single run, and what part of it is good.
double GoodPercentAt(BenchOptions bench, double rate) {
  bench.arrivals.request_rate = rate;
  const absl::StatusOr<Json> report = ReportSim(bench, SmallSim(), {});
  if (!report.ok()) return -1;
  return 100.0 * report->at("good_requests").get<double>() / 150;
}

TEST(ReportSimTest, FindsTheRateThatSingleRunsConfirm) {
  const BenchOptions bench = Goal("ttft:300 tpot:15");
  ASSERT_OK_AND_ASSIGN(const Json report,
                       ReportSim(bench, SmallSim(), {.find_max_rate = true}));
  const double rate = report["max_request_rate"];
  const double failing = report["rate_search"]["failing_request_rate"];
  EXPECT_EQ(report["request_rate"], rate);
  EXPECT_LT(rate, failing);
  EXPECT_LE(failing, rate * 1.02);
  EXPECT_GE(GoodPercentAt(bench, rate), 99);
  EXPECT_LT(GoodPercentAt(bench, failing), 99);
  EXPECT_EQ(report["rate_search"]["trials"][0]["request_rate"], "inf");
  EXPECT_THAT(FormatReport(report), HasSubstr("Goal holds at (req/s):"));
  // Asked for less, it takes more.
  ASSERT_OK_AND_ASSIGN(const Json half,
                       ReportSim(bench, SmallSim(),
                                 {.find_max_rate = true, .good_percent = 50}));
  EXPECT_GT(half["max_request_rate"].get<double>(), rate);
}

TEST(ReportSimTest, TheSameSearchGivesTheSameReport) {
  BenchOptions bench = Goal("ttft:300");
  bench.arrivals.burstiness = 0.5;
  const RateSearchOptions search{.find_max_rate = true};
  ASSERT_OK_AND_ASSIGN(const Json first, ReportSim(bench, SmallSim(), search));
  ASSERT_OK_AND_ASSIGN(const Json second, ReportSim(bench, SmallSim(), search));
  EXPECT_EQ(first.dump(), second.dump());
}

TEST(ReportSimTest, AGoalOfAllAtOnceIsSaidToBe) {
  ASSERT_OK_AND_ASSIGN(
      const Json report,
      ReportSim(Goal("e2el:1e9"), SmallSim(), {.find_max_rate = true}));
  EXPECT_EQ(report["max_request_rate"], "inf");
  EXPECT_TRUE(report["rate_search"]["failing_request_rate"].is_null());
  EXPECT_THAT(FormatReport(report), HasSubstr("Goal holds at (req/s):"));
}

TEST(ReportSimTest, ATraceKeepsItsPatternAtEveryRate) {
  const TempFolder folder;
  std::string trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  // Pairs, 10 s apart.
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&trace, "2023-11-16 18:", 10 + i / 12, ":", i / 2 % 6,
                    "0,500,20\n");
  }
  BenchOptions bench = Goal("ttft:20");
  bench.dataset = {.name = "azure", .path = folder.Write("trace.csv", trace)};
  bench.arrivals.scale_trace = true;
  bench.save_detailed = true;
  bench.json = true;
  ASSERT_OK_AND_ASSIGN(const Json report,
                       ReportSim(bench, SmallSim(), {.find_max_rate = true}));
  const double rate = report["max_request_rate"];
  const Json& starts = report["start_times"];
  ASSERT_EQ(starts.size(), 40u);
  EXPECT_EQ(starts[0], 0.0);
  EXPECT_EQ(starts[1], 0.0);
  EXPECT_NEAR(starts[39].get<double>(), 40 / rate, 1e-9);
  EXPECT_NEAR(starts[2].get<double>() * 19, 40 / rate, 1e-9);
}

TEST(ReportSimTest, NamesTheFlagThatIsMissingOrTooMuch) {
  const auto refuses = [](const BenchOptions& bench,
                          const RateSearchOptions& search, const char* part) {
    EXPECT_THAT(ReportSim(bench, SmallSim(), search), IsInvalid(part));
  };
  BenchOptions bench = Goal("ttft:300");
  refuses(bench, {.good_percent = 90}, "good-percent: has no effect");
  bench.arrivals.request_rate = 1;
  refuses(bench, {.find_max_rate = true}, "request-rate: has no effect");
  bench.goodput.clear();
  refuses(bench, {.find_max_rate = true}, "find-max-rate: needs --goodput");
  refuses(Goal(""), {.find_max_rate = true}, "find-max-rate: needs --goodput");
  // Before the first run, which makes no use of them.
  bench = Goal("ttft:300");
  bench.arrivals.burstiness = -1;
  refuses(bench, {.find_max_rate = true}, "burstiness");
  bench = Goal("ttft:300");
  bench.arrivals.scale_trace = true;
  refuses(bench, {.find_max_rate = true}, "scale-trace");
  EXPECT_THAT(ReportSim(Goal("ttft:1e-6"), SmallSim(), {.find_max_rate = true}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("got 0 %")));
}

}  // namespace
}  // namespace blockmgr
