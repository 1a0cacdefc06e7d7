#include "bench/compare.h"

#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

// The line of a title with its spaces squeezed.
std::string LineOf(const std::string& text, const std::string& title) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(title)) continue;
    std::istringstream words(line.substr(title.size()));
    std::string result;
    for (std::string word; words >> word;) {
      result += (result.empty() ? "" : " ") + word;
    }
    return result;
  }
  return "no such line";
}

TEST(FormatComparisonTest, PutsValuesAndRatiosSideBySide) {
  const Json full = {{"mean_requests_in_flight", 10.0},
                     {"max_requests_in_flight", 12},
                     {"p50_ttft_ms", 2000.0},
                     {"preemptions", 5},
                     {"evictions", 0},
                     {"evicted_bytes", 0},
                     {"kept_entries_min", 0},
                     {"eviction", nullptr},
                     {"keep_ratio", nullptr}};
  const Json kept = {{"mean_requests_in_flight", 38.0},
                     {"max_requests_in_flight", 60},
                     {"p50_ttft_ms", 500.0},
                     {"preemptions", 0},
                     {"evictions", 7},
                     {"evicted_bytes", 3221225472},
                     {"kept_entries_min", 32},
                     {"eviction", "snapkv | adakv | topk"},
                     {"keep_ratio", 0.2},
                     {"eviction_mode", "decode"},
                     {"compress_every", 512},
                     {"share_prefix", true}};
  const std::string text = FormatComparison("full.json", full, "b.json", kept);
  EXPECT_THAT(text, HasSubstr("A  full.json: no eviction\n"));
  EXPECT_THAT(
      text, HasSubstr("B  b.json: keep 0.2, snapkv | adakv | topk, decode 512, "
                      "shared prefixes\n"));
  EXPECT_EQ(LineOf(text, "requests in flight, mean"), "10.0 38.0 3.80x");
  EXPECT_EQ(LineOf(text, "requests in flight, max"), "12 60 5.00x");
  EXPECT_EQ(LineOf(text, "TTFT p50 (ms)"), "2000.0 500.0 0.25x");
  EXPECT_EQ(LineOf(text, "preemptions"), "5 0 0.00x");
  EXPECT_EQ(LineOf(text, "freed by eviction (GiB)"), "0.00 3.00 -");
  EXPECT_EQ(LineOf(text, "kept tokens per head, min"), "- 32 -");
  EXPECT_EQ(LineOf(text, "highest request rate (1/s)"), "no such line");
  // Not in either report.
  EXPECT_EQ(LineOf(text, "TPOT p99 (ms)"), "- - -");
}

TEST(FormatComparisonTest, NamesInputsThatDiffer) {
  const Json a = {{"completed", 1},
                  {"seed", 0},
                  {"goodput", "ttft:200"},
                  {"request_rate", 2.0}};
  Json b = a;
  EXPECT_THAT(FormatComparison("a", a, "b", b), Not(HasSubstr("differ")));
  b["seed"] = 7;
  b["goodput"] = nullptr;
  b["vocab_size"] = 9;  // an older report does not tell
  EXPECT_THAT(FormatComparison("a", a, "b", b),
              HasSubstr("\ninputs differ: seed 0 and 7, goodput \"ttft:200\" "
                        "and null\n\n"));
  // The result of a search.
  Json found = a;
  found["rate_search"] = b["rate_search"] = Json::object();
  b = found;
  b["request_rate"] = 3.0;
  EXPECT_THAT(FormatComparison("a", found, "b", b), Not(HasSubstr("differ")));
}

TEST(FormatComparisonTest, WhatWasNotMeasuredIsNoZero) {
  const Json a = {{"p50_tpot_ms", nullptr}, {"max_request_rate", "inf"}};
  const Json b = {{"p50_tpot_ms", 2.0}, {"max_request_rate", 4.0}};
  const std::string text = FormatComparison("a", a, "b", b);
  EXPECT_EQ(LineOf(text, "TPOT p50 (ms)"), "- 2.00 -");
  EXPECT_EQ(LineOf(text, "highest request rate (1/s)"), "inf 4.000 -");
}

TEST(FormatComparisonTest, ShowsNotesAndRatesThatWereFound) {
  const Json a = {{"max_request_rate", 0.4},
                  {"max_used_blocks", nullptr},
                  {"notes", {"the daemon was started again"}}};
  const Json b = {{"max_request_rate", 1.5}, {"max_used_blocks", 9}};
  const std::string text = FormatComparison("a.json", a, "b.json", b);
  EXPECT_THAT(text, HasSubstr("A  a.json: no eviction\n   note: the daemon was "
                              "started again\nB  b.json"));
  EXPECT_EQ(LineOf(text, "highest request rate (1/s)"), "0.400 1.500 3.75x");
  EXPECT_EQ(LineOf(text, "blocks used, max"), "- 9 -");
}

}  // namespace
}  // namespace blockmgr
