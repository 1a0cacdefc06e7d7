#include "bench/datasets.h"

#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Workload> Mooncake(const std::string& text,
                                  std::optional<int64_t> limit = {}) {
  std::istringstream input(text);
  return ParseMooncake(input, "trace.jsonl", 0, limit);
}

absl::StatusOr<Workload> Azure(const std::string& text,
                               std::optional<int64_t> limit = {}) {
  std::istringstream input(text);
  return ParseAzure(input, "trace.csv", 0, limit);
}

TEST(MooncakeTest, ReadsLengthsTimesAndPrefixes) {
  ASSERT_OK_AND_ASSIGN(
      const Workload workload,
      Mooncake("{\"timestamp\": 1000, \"input_length\": 1025, "
               "\"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
               "{\"timestamp\": 4500, \"input_length\": 600, "
               "\"output_length\": 6, \"hash_ids\": [0, 9]}"));
  ASSERT_EQ(workload.requests.size(), 2u);
  const WorkloadRequest& a = workload.requests[0];
  const WorkloadRequest& b = workload.requests[1];
  EXPECT_EQ(a.arrival_s, 0.0);
  EXPECT_EQ(b.arrival_s, 3.5);
  EXPECT_EQ(a.output_tokens, 5);
  EXPECT_EQ(a.prompt_tokens(), 1025);
  ASSERT_EQ(a.prompt.size(), 3u);
  EXPECT_EQ(a.prompt[2].num_tokens, 1);
  EXPECT_EQ(b.prompt_tokens(), 600);
  const auto tokens_a = SynthesizeTokens(a.prompt, 1000);
  const auto tokens_b = SynthesizeTokens(b.prompt, 1000);
  for (int i = 0; i < 512; ++i) ASSERT_EQ(tokens_a[i], tokens_b[i]) << i;
  EXPECT_FALSE(std::equal(tokens_b.begin() + 512, tokens_b.end(),
                          tokens_a.begin() + 512));
}

TEST(MooncakeTest, LimitStopsBeforeLaterLines) {
  ASSERT_OK_AND_ASSIGN(
      const Workload workload,
      Mooncake("{\"timestamp\": 0, \"input_length\": 1, "
               "\"output_length\": 1, \"hash_ids\": [0]}\nnot json\n",
               1));
  EXPECT_EQ(workload.requests.size(), 1u);
}

TEST(MooncakeTest, NamesFileLineFieldAndReason) {
  const std::string good =
      "{\"timestamp\": 5, \"input_length\": 512, \"output_length\": 1, "
      "\"hash_ids\": [0]}\n";
  struct Case {
    const char* line;
    const char* field;
    const char* reason;
  };
  const Case cases[] = {
      {"not json", "line", "expected a JSON object"},
      {"[1]", "line", "expected a JSON object"},
      {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "timestamp", "missing"},
      {"{\"timestamp\": \"5\", \"input_length\": 1, \"output_length\": 1, "
       "\"hash_ids\": [1]}",
       "timestamp", "got \"5\""},
      {"{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, "
       "\"hash_ids\": [1]}",
       "timestamp", "earlier than the row before"},
      {"{\"timestamp\": 6, \"input_length\": 0, \"output_length\": 1, "
       "\"hash_ids\": []}",
       "input_length", "of 1 to 16777216, got 0"},
      {"{\"timestamp\": 6, \"input_length\": 1, \"output_length\": 1.5, "
       "\"hash_ids\": [1]}",
       "output_length", "got 1.5"},
      {"{\"timestamp\": 6, \"input_length\": 99999999999999, "
       "\"output_length\": 1, \"hash_ids\": [1]}",
       "input_length", "got 99999999999999"},
      {"{\"timestamp\": 6, \"input_length\": 513, \"output_length\": 1, "
       "\"hash_ids\": [1]}",
       "hash_ids", "expected an array of 2 ids"},
      {"{\"timestamp\": 6, \"input_length\": 5, \"output_length\": 1, "
       "\"hash_ids\": 3}",
       "hash_ids", "got 3"},
      {"{\"timestamp\": 6, \"input_length\": 5, \"output_length\": 1, "
       "\"hash_ids\": [-3]}",
       "hash_ids", "got -3"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Mooncake(good + c.line + "\n"),
                IsInvalid(std::string("trace.jsonl:2: ") + c.field, c.reason))
        << c.line;
  }
  EXPECT_THAT(Mooncake(""), IsInvalid("at least one request"));
}

TEST(AzureTest, ReadsCrlfRowsAndALastRowWithoutNewline) {
  ASSERT_OK_AND_ASSIGN(const Workload workload,
                       Azure("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                             "2023-11-16 18:59:59.5000000,374,44\r\n"
                             "2023-11-16 19:00:01.7500001,12,8"));
  ASSERT_EQ(workload.requests.size(), 2u);
  EXPECT_EQ(workload.requests[0].arrival_s, 0.0);
  EXPECT_NEAR(workload.requests[1].arrival_s, 2.2500001, 1e-9);
  EXPECT_EQ(workload.requests[0].prompt_tokens(), 374);
  EXPECT_EQ(workload.requests[0].output_tokens, 44);
  EXPECT_EQ(workload.requests[1].output_tokens, 8);
  EXPECT_NE(workload.requests[0].prompt[0].stream,
            workload.requests[1].prompt[0].stream);
}

TEST(AzureTest, NamesFileLineFieldAndReason) {
  const std::string good =
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n";
  struct Case {
    const char* row;
    const char* field;
    const char* reason;
  };
  const Case cases[] = {
      {"2023-11-16 18:15:47.0,1", "line", "expected 3 fields, got 2"},
      {"yesterday,1,1", "TIMESTAMP", "got 'yesterday'"},
      {"2023-11-16 18:15:45.0,1,1", "TIMESTAMP", "earlier than"},
      {"2023-11-16 18:15:47.0,0,1", "ContextTokens", "got '0'"},
      {"2023-11-16 18:15:47.0,1,x", "GeneratedTokens", "got 'x'"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Azure(good + c.row + "\n"),
                IsInvalid(std::string("trace.csv:3: ") + c.field, c.reason))
        << c.row;
  }
  EXPECT_THAT(Azure("a,b,c\n1,2,3\n"), IsInvalid("trace.csv:1: header"));
}

TEST(TraceTest, TimestampsInAnotherUnitAreAnError) {
  // An hour in nanoseconds, where milliseconds are meant.
  EXPECT_THAT(
      Mooncake("{\"timestamp\": 0, \"input_length\": 1, "
               "\"output_length\": 1, \"hash_ids\": [0]}\n"
               "{\"timestamp\": 3600000000000, \"input_length\": 1, "
               "\"output_length\": 1, \"hash_ids\": [1]}\n"),
      IsInvalid("trace.jsonl:2: timestamp: ", "got 41666.7 days", "unit"));
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* time : {"2033-11-16 18:15:46", "infinite-future"}) {
    EXPECT_THAT(
        Azure(absl::StrCat(header, "2023-11-16 18:15:46,1,1\n", time, ",1,1")),
        IsInvalid("trace.csv:3: TIMESTAMP: "));
  }
}

TEST(LoadDatasetTest, RejectsBadOptionsByName) {
  const std::pair<DatasetOptions, const char*> cases[] = {
      {{.name = "sharegpt"}, "dataset-name: "},
      {{.name = "mooncake"}, "dataset-path: "},
      {{.num_prompts = 0}, "num-prompts: "},
      {{.num_prompts = 100'000'000'000},
       "num-prompts: expected 1 to 10000000 random requests, got "
       "100000000000"},
      {{.num_prompts = 1000, .random = {.output_tokens = 2'000'000}},
       "num-prompts, random-output-len: expected at most 1073741824 output "
       "tokens of all requests together, got 2000000000 of 1000"},
      {{.random = {.input_tokens = (1 << 24) + 1}},
       "random-input-len: expected 1 to 16777216, got 16777217"},
      {{.random = {.range_ratio = 1}}, "random-range-ratio: "},
      {{.random = {.output_tokens = 0}}, "random-output-len: "},
      // Each is in its range, and what they come to is not.
      {{.random = {.input_tokens = 1 << 23, .prefix_tokens = (1 << 23) + 1}},
       "random-input-len: expected prompts of at most 16777216 tokens, with "
       "--random-range-ratio and --random-prefix-len, got up to 16777217"},
      {{.num_prompts = 1,
        .random = {.output_tokens = 1 << 24, .range_ratio = 0.999}},
       "random-output-len: "}};
  for (const auto& [options, why] : cases) {
    EXPECT_THAT(LoadDataset(options), IsInvalid(why));
  }
  EXPECT_OK(LoadDataset(
      {.num_prompts = 1,
       .random = {.output_tokens = 1 << 23, .range_ratio = 0.999}}));
  EXPECT_THAT(
      LoadDataset({.name = "mooncake", .path = "/nonexistent/trace.jsonl"}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("trace.jsonl")));
}

TEST(RandomDatasetTest, LengthsStayInRangeAndPrefixIsShared) {
  const RandomDatasetOptions options{.input_tokens = 100,
                                     .output_tokens = 10,
                                     .range_ratio = 0.25,
                                     .prefix_tokens = 33};
  ASSERT_OK_AND_ASSIGN(const Workload workload,
                       MakeRandomDataset(options, 2000, 1));
  ASSERT_EQ(workload.requests.size(), 2000u);
  std::set<int32_t> inputs;
  std::set<int32_t> outputs;
  for (const WorkloadRequest& request : workload.requests) {
    ASSERT_EQ(request.prompt.size(), 2u);
    EXPECT_EQ(request.prompt[0], workload.requests[0].prompt[0]);
    EXPECT_EQ(request.prompt[0].num_tokens, 33);
    inputs.insert(request.prompt[1].num_tokens);
    outputs.insert(request.output_tokens);
  }
  // 2000 draws of 51 values: each is missing with probability 6e-18.
  EXPECT_EQ(*inputs.begin(), 75);
  EXPECT_EQ(*inputs.rbegin(), 125);
  EXPECT_EQ(inputs.size(), 51u);
  EXPECT_EQ(*outputs.begin(), 7);
  EXPECT_EQ(*outputs.rbegin(), 13);
}

TEST(RandomDatasetTest, SameSeedGivesSameRequests) {
  const RandomDatasetOptions options{.range_ratio = 0.5};
  ASSERT_OK_AND_ASSIGN(const Workload a, MakeRandomDataset(options, 50, 4));
  ASSERT_OK_AND_ASSIGN(const Workload b, MakeRandomDataset(options, 50, 4));
  ASSERT_OK_AND_ASSIGN(const Workload c, MakeRandomDataset(options, 50, 5));
  bool differs = false;
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(a.requests[i].prompt, b.requests[i].prompt);
    EXPECT_EQ(a.requests[i].output_tokens, b.requests[i].output_tokens);
    differs |= a.requests[i].prompt_tokens() != c.requests[i].prompt_tokens();
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace blockmgr
